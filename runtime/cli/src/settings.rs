//! `NAME=VALUE,...`: what `--set` and `--shape` take; and files of schedules.

use std::collections::BTreeSet;
use std::path::Path;
use std::str::FromStr;

use flashtile::Schedule;

use crate::failure::{Failure, Result as Outcome};
use crate::files;

/// A list of names with values, in the order given.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Settings<T>(pub Vec<(String, T)>);

impl<T> Settings<T> {
    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

/// Refuses names that are given more than once: of two values one would be ignored.
pub fn only_once<'a>(names: impl IntoIterator<Item = &'a str>) -> Outcome<()> {
    let mut seen = BTreeSet::new();
    match names.into_iter().find(|name| !seen.insert(*name)) {
        None => Ok(()),
        Some(twice) => Err(Failure::Usage(format!("`{twice}` is given more than once; give it one value"))),
    }
}

/// What a name may be set to.
pub trait Setting: Sized {
    /// The value of a text.
    fn read(text: &str) -> Option<Self>;
}

impl Setting for i64 {
    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Setting for f64 {
    /// A number; infinite only where the text says so.
    fn read(text: &str) -> Option<Self> {
        let digits = text.bytes().any(|b| b.is_ascii_digit());
        text.parse().ok().filter(|x: &Self| x.is_finite() || !digits)
    }
}

impl<T: Setting> FromStr for Settings<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        items
            .map(|item| {
                let (name, value) = item.split_once('=').ok_or_else(|| format!("`{item}` is not of the form NAME=VALUE"))?;
                let (name, value) = (name.trim(), value.trim());
                let value = T::read(value).ok_or_else(|| format!("`{value}` is not a number that `{name}` can be"))?;
                Ok((name.to_owned(), value))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// Sizes by name: `B=2,H=16,M=8192`.
pub type Sizes = Settings<i64>;
/// Numbers by name: `D=128,scale=0.1`.
pub type Numbers = Settings<f64>;

/// The schedules of a file, one a line; empty lines and lines that begin with `#` do not count.
pub fn schedules(path: &Path) -> Outcome<Vec<Schedule>> {
    let text = String::from_utf8_lossy(&files::read(path)?).into_owned();
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let schedule = |(number, line): (usize, &str)| {
        line.parse().map_err(|error| Failure::ScheduleFile { path: path.display().to_string(), line: number, error })
    };
    let found: Vec<Schedule> = lines.map(schedule).collect::<Outcome<_>>()?;
    match found.is_empty() {
        true => Err(Failure::Usage(format!("{} holds no schedule; write one a line", path.display()))),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_no_schedule_is_named_with_its_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("some.txt");
        std::fs::write(&path, "# warps\nwarps=4\n\n  stages=1\n").expect("writes");
        assert_eq!(schedules(&path).expect("schedules").len(), 2);
        std::fs::write(&path, "\u{feff}warps=4\r\n").expect("writes");
        assert_eq!(schedules(&path).expect("a schedule").len(), 1, "a mark of the byte order is no part of a knob");
        std::fs::write(&path, "# none\n").expect("writes");
        assert!(schedules(&path).expect_err("none").to_string().ends_with("some.txt holds no schedule; write one a line"));
        std::fs::write(&path, "# warps\nwarps=4\n\nwarp=4\n").expect("writes");
        let error = schedules(&path).expect_err("no such knob");
        assert!(error.to_string().starts_with(&format!("{}:4: unknown knob `warp`", path.display())), "{error}");
        assert_eq!(error.exit().row().name, "schedule");
    }

    #[test]
    fn lists_are_read_and_faults_named() {
        let sizes: Sizes = "B=2, M=8192".parse().expect("sizes");
        assert_eq!(sizes.0, [("B".to_owned(), 2), ("M".to_owned(), 8192)]);
        let error = |text: &str| text.parse::<Sizes>().expect_err(text);
        let names = |text: &str| only_once(text.parse::<Sizes>().expect("sizes").names()).map_err(|e| e.to_string());
        assert_eq!(names("B=2,M=3"), Ok(()));
        assert_eq!(names("B=2,M=3,B=2"), Err("`B` is given more than once; give it one value".to_owned()));
        assert_eq!(error("B"), "`B` is not of the form NAME=VALUE");
        assert_eq!(error("B=two"), "`two` is not a number that `B` can be");
        let infinite = |text: &str| text.parse::<Numbers>();
        assert_eq!(infinite("s=1e400"), Err("`1e400` is not a number that `s` can be".to_owned()));
        assert_eq!(infinite("s=inf").expect("says so").0, [("s".to_owned(), f64::INFINITY)]);
        assert_eq!("scale=-0.5".parse::<Numbers>().expect("numbers").0, [("scale".to_owned(), -0.5)]);
    }
}
