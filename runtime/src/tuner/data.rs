//! What random inputs are like: what a kernel is tuned and timed on.
//!
//! Some schedules depend on data. A lazy running maximum moves seldom on scores that vary little along the walk, and in every
//! step where they keep growing, so that another schedule wins. Who knows the data says so, and the schedule is chosen on such.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How the values of a tensor are distributed: normally, times a scale, times what grows along the rows.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Distribution {
    /// Standard deviation.
    pub scale: f64,
    /// Rows (the last dimension but one) grow linearly: the first is multiplied by 0.1, the last by this.
    pub growth: Option<f64>,
}

impl Default for Distribution {
    fn default() -> Self {
        Self { scale: 1.0, growth: None }
    }
}

impl Distribution {
    /// Where rows that grow begin.
    const FIRST: f64 = 0.1;

    /// What a value of row `row` of `rows` is multiplied by.
    pub(super) fn factor(&self, row: usize, rows: usize) -> f64 {
        let growth = self.growth.map_or(1.0, |last| {
            let along = row as f64 / rows.saturating_sub(1).max(1) as f64;
            Self::FIRST + (last - Self::FIRST) * along
        });
        self.scale * growth
    }
}

/// Distributions of inputs by the names of their parameters. The others are normal.
///
/// ```
/// let data: flashtile::tuner::InputData = "k:growth=300".parse()?;
/// assert_eq!(data.0["k"].growth, Some(300.0));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct InputData(pub BTreeMap<String, Distribution>);

impl InputData {
    /// Whether all inputs are normal.
    pub fn is_normal(&self) -> bool {
        self.0.values().all(|d| *d == Distribution::default())
    }

    /// The distribution of a parameter.
    pub fn of(&self, name: &str) -> Distribution {
        self.0.get(name).copied().unwrap_or_default()
    }
}

impl fmt::Display for InputData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("normal");
        }
        for (index, (name, d)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(f, "{separator}{name}:scale={}", d.scale)?;
            if let Some(growth) = d.growth {
                write!(f, ",growth={growth}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for InputData {
    type Err = String;

    /// One or more of `NAME:scale=NUMBER,growth=NUMBER`, apart by spaces.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        for item in text.split_whitespace() {
            let form = || format!("`{item}` is not of the form NAME:scale=NUMBER,growth=NUMBER");
            let (name, settings) = item.split_once(':').ok_or_else(form)?;
            let mut distribution = Distribution::default();
            for setting in settings.split(',') {
                let (key, value) = setting.split_once('=').ok_or_else(form)?;
                let number: f64 = value.parse().map_err(|_| format!("`{value}` is not a number that `{key}` can be"))?;
                if !number.is_finite() {
                    return Err(format!("`{key}` of `{name}` is not finite"));
                }
                match key {
                    "scale" => distribution.scale = number,
                    "growth" => distribution.growth = Some(number),
                    _ => return Err(format!("`{key}` is unknown; data have scale and growth")),
                }
            }
            all.insert(name.to_owned(), distribution);
        }
        Ok(Self(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_is_read_back_and_faults_are_named() {
        let data: InputData = "k:growth=300 q:scale=8".parse().expect("data");
        assert_eq!(data.to_string(), "k:scale=1,growth=300 q:scale=8");
        assert_eq!(data.to_string().parse::<InputData>(), Ok(data.clone()));
        assert!(!data.is_normal() && InputData::default().is_normal());
        let error = |text: &str| text.parse::<InputData>().expect_err(text);
        assert!(error("k").contains("NAME:scale=NUMBER"));
        assert_eq!(error("k:growth=much"), "`much` is not a number that `growth` can be");
        assert_eq!(error("k:speed=1"), "`speed` is unknown; data have scale and growth");
    }

    #[test]
    fn rows_grow_linearly_from_a_tenth() {
        let d = Distribution { scale: 2.0, growth: Some(300.0) };
        let near = |row: usize, factor: f64| (d.factor(row, 3) - factor).abs() < 1e-9;
        assert!(near(0, 0.2) && near(1, 300.1) && near(2, 600.0));
        assert_eq!(Distribution::default().factor(5, 7), 1.0);
        assert_eq!(Distribution { scale: 1.0, growth: Some(3.0) }.factor(0, 1), 0.1);
    }
}
