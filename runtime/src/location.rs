//! Where this crate keeps files: `FLASHTILE_CACHE`, or `flashtile` in the platform's directory for caches. And whose files it
//! takes from there: only this user's, unless `FLASHTILE_TRUST_CACHE=1` says that whoever can write there may be trusted.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::private::Trust;

/// The directory, which need not exist; `None` if no variable says where the user's files are.
pub(crate) fn directory() -> Option<PathBuf> {
    directory_from(|name| env::var_os(name))
}

/// Whose files are taken from there.
pub(crate) fn trust() -> Trust {
    match env::var_os("FLASHTILE_TRUST_CACHE").is_some_and(|v| v == "1") {
        true => Trust::Anyone,
        false => Trust::Own,
    }
}

fn directory_from(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let variable = |name| variable(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(explicit) = variable("FLASHTILE_CACHE") {
        return Some(explicit);
    }
    let base = if cfg!(windows) {
        variable("LOCALAPPDATA")?
    } else if cfg!(target_os = "macos") {
        variable("HOME")?.join("Library/Caches")
    } else {
        // The XDG specification: a relative path is invalid and to be ignored.
        variable("XDG_CACHE_HOME").filter(|p| p.is_absolute()).or_else(|| Some(variable("HOME")?.join(".cache")))?
    };
    Some(base.join("flashtile"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn variables_in_order() {
        let with = |set: &[(&str, &str)]| {
            directory_from(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value)))
        };
        let home = ("HOME", "/home/u");
        assert_eq!(with(&[home, ("FLASHTILE_CACHE", "/fast")]), Some("/fast".into()));
        assert_eq!(with(&[home, ("XDG_CACHE_HOME", "/cache")]), Some("/cache/flashtile".into()));
        assert_eq!(with(&[home, ("XDG_CACHE_HOME", "relative")]), Some("/home/u/.cache/flashtile".into()));
        assert_eq!(with(&[home, ("FLASHTILE_CACHE", "")]), Some("/home/u/.cache/flashtile".into()));
        assert_eq!(with(&[]), None);
    }
}
