//! What a user says of random inputs: what a kernel is checked, tuned and timed on.
//!
//! Without a word each input holds what the kernel's text asks for. A user who knows better says so: the integers of a batch
//! may be longer runs of ids than the text can tell, and some schedules depend on data. A lazy running maximum moves seldom on
//! scores that vary little along the walk, and in every step where they keep growing, so that another schedule wins.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::ir::Kernel;
use serde::{Deserialize, Serialize};

use super::DataError;

/// The settings there are, for errors and `--help`.
pub(super) const SETTINGS: &str = "settings are scale=S, growth=G, normal, range=A..B, constant=C, ids=N, sorted-ids=N, even-ids=N, lengths, \
                                   lengths=N, bits=SHARE, permutation";

/// What an input holds, where it is said.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Values {
    /// Normally distributed floats, with standard deviation 1 times the scale.
    Normal,
    /// From the first, below the second: whole numbers for integers.
    Range(f64, f64),
    /// This value everywhere.
    Constant(f64),
    /// Integers below this, in any order.
    Ids(u32),
    /// Integers below this that ascend along the last dimension, in runs whose ends lie near each other in all inputs.
    SortedIds(u32),
    /// Numbers below this, in ascending runs of equal length.
    EvenIds(u32),
    /// Integers from 0 to this, both ends among them; without a number, up to the extent that the kernel compares them with.
    Lengths(Option<u32>),
    /// 0 and 1, with this share of 1.
    Bits(f64),
    /// Along the last dimension every integer below its extent once.
    Permutation,
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::Normal => f.write_str("normal"),
            Values::Range(from, to) => write!(f, "range={from}..{to}"),
            Values::Constant(value) => write!(f, "constant={value}"),
            Values::Ids(count) => write!(f, "ids={count}"),
            Values::SortedIds(count) => write!(f, "sorted-ids={count}"),
            Values::EvenIds(count) => write!(f, "even-ids={count}"),
            Values::Lengths(None) => f.write_str("lengths"),
            Values::Lengths(Some(most)) => write!(f, "lengths={most}"),
            Values::Bits(share) => write!(f, "bits={share}"),
            Values::Permutation => f.write_str("permutation"),
        }
    }
}

/// How the values of an input are distributed.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Distribution {
    /// What they are; `None` leaves it to the kernel's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Values>,
    /// Floats are multiplied by this.
    pub scale: f64,
    /// Rows of floats (the last dimension but one) grow linearly: the first is multiplied by 0.1, the last by this.
    pub growth: Option<f64>,
}

impl Default for Distribution {
    fn default() -> Self {
        Self { values: None, scale: 1.0, growth: None }
    }
}

impl InputData {
    /// What is said of the inputs of a kernel.
    pub fn of_inputs(&self, kernel: &Kernel) -> Self {
        let is_input = |name: &str| kernel.params.values().any(|param| param.name == name && param.kind.is_read());
        Self(self.0.iter().filter(|(name, _)| is_input(name)).map(|(name, said)| (name.clone(), *said)).collect())
    }
}

impl Distribution {
    /// Where rows that grow begin.
    const FIRST: f64 = 0.1;

    /// This value everywhere.
    pub fn constant(value: f64) -> Self {
        Self { values: Some(Values::Constant(value)), ..Self::default() }
    }

    /// What a value of row `row` of `rows` is multiplied by.
    pub(super) fn factor(&self, row: usize, rows: usize) -> f64 {
        let growth = self.growth.map_or(1.0, |last| {
            let along = row as f64 / rows.saturating_sub(1).max(1) as f64;
            Self::FIRST + (last - Self::FIRST) * along
        });
        self.scale * growth
    }

    fn read(name: &str, settings: &str) -> Result<Self, DataError> {
        let mut distribution = Self::default();
        for text in settings.split(',') {
            let (setting, value) = text.split_once('=').map_or((text, None), |(setting, value)| (setting, Some(value)));
            let wrong = |expected| DataError::Value {
                name: name.to_owned(),
                setting: setting.to_owned(),
                value: value.unwrap_or_default().to_owned(),
                expected,
            };
            let number = |expected| {
                let number = value.and_then(|v| v.parse::<f64>().ok()).filter(|x| x.is_finite());
                number.ok_or_else(|| wrong(expected))
            };
            let count = |expected| {
                let count = value.and_then(|v| v.parse::<u32>().ok()).filter(|n| (1..1 << 31).contains(n));
                count.ok_or_else(|| wrong(expected))
            };
            let plain = |values| if value.is_none() { Ok(values) } else { Err(wrong("no value")) };
            let values = match setting {
                "scale" => {
                    distribution.scale = number("a number")?;
                    continue;
                }
                "growth" => {
                    distribution.growth = Some(number("a number")?);
                    continue;
                }
                "normal" => plain(Values::Normal)?,
                "permutation" => plain(Values::Permutation)?,
                "constant" => Values::Constant(number("a number")?),
                "ids" => Values::Ids(count("how many there are, such as 8")?),
                "sorted-ids" => Values::SortedIds(count("how many there are, such as 8")?),
                "even-ids" => Values::EvenIds(count("how many there are, such as 8")?),
                "lengths" if value.is_none() => Values::Lengths(None),
                "lengths" => Values::Lengths(Some(count("the longest, such as 512")?)),
                "bits" => {
                    let expected = "the share of 1, from 0 to 1";
                    Values::Bits(number(expected).ok().filter(|x| (0.0..=1.0).contains(x)).ok_or_else(|| wrong(expected))?)
                }
                "range" => {
                    let ends = value.and_then(|v| v.split_once(".."));
                    let ends = ends.and_then(|(from, to)| Some((from.parse::<f64>().ok()?, to.parse::<f64>().ok()?)));
                    let ends = ends.filter(|(from, to)| from.is_finite() && to.is_finite() && from < to);
                    let (from, to) = ends.ok_or_else(|| wrong("two numbers that ascend, such as 0..100"))?;
                    Values::Range(from, to)
                }
                _ => return Err(DataError::Setting { name: name.to_owned(), setting: setting.to_owned() }),
            };
            if let Some(other) = distribution.values.replace(values) {
                let (first, second) = (other.to_string(), values.to_string());
                return Err(DataError::Both { name: name.to_owned(), first, second });
            }
        }
        Ok(distribution)
    }
}

/// Distributions of inputs by the names of their parameters. What the others hold, the kernel's text says.
///
/// ```
/// use flashtile_dsl::inputs::{InputData, Values};
/// let data: InputData = "k:growth=300 qid:sorted-ids=8".parse()?;
/// assert_eq!(data.0["k"].growth, Some(300.0));
/// assert_eq!(data.0["qid"].values, Some(Values::SortedIds(8)));
/// # Ok::<(), flashtile_dsl::inputs::DataError>(())
/// ```
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct InputData(pub BTreeMap<String, Distribution>);

impl InputData {
    /// Whether nothing is said.
    pub fn is_default(&self) -> bool {
        self.0.values().all(|d| *d == Distribution::default())
    }

    /// Whether floats are as they are where nothing is said: neither larger nor growing.
    pub fn is_normal(&self) -> bool {
        let normal = |d: &Distribution| {
            let same = Distribution { values: None, ..*d } == Distribution::default();
            same && !matches!(d.values, Some(Values::Range(..)))
        };
        self.0.values().all(normal)
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
            write!(f, "{separator}{name}:")?;
            match d.values {
                Some(values) => write!(f, "{values}")?,
                None => write!(f, "scale={}", d.scale)?,
            }
            if d.values.is_some() && d.scale != 1.0 {
                write!(f, ",scale={}", d.scale)?;
            }
            if let Some(growth) = d.growth {
                write!(f, ",growth={growth}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for InputData {
    type Err = DataError;

    /// One or more of `NAME:SETTING,SETTING..`, apart by spaces.
    fn from_str(text: &str) -> Result<Self, DataError> {
        let mut all = BTreeMap::new();
        for item in text.split_whitespace() {
            let (name, settings) = item
                .split_once(':')
                .filter(|(name, settings)| !name.is_empty() && !settings.is_empty())
                .ok_or_else(|| DataError::Form { item: item.to_owned() })?;
            all.insert(name.to_owned(), Distribution::read(name, settings)?);
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
        assert!(!data.is_normal() && InputData::default().is_normal());
        let scalar: InputData = "scale:constant=2".parse().expect("data");
        assert!(scalar.is_normal() && !scalar.is_default());
        let all = "a:ids=8 b:sorted-ids=8 k:even-ids=8 c:lengths d:lengths=512 e:bits=0.5 f:range=0..100 g:constant=3 h:permutation \
                   i:normal,scale=2,growth=30 j:range=-1.5..1.5";
        for text in ["k:growth=300 q:scale=8", all] {
            let data: InputData = text.parse().expect("data");
            assert_eq!(data.to_string().parse::<InputData>(), Ok(data.clone()), "{data}");
            let kept = serde_json::to_string(&data).expect("serializes");
            assert_eq!(serde_json::from_str::<InputData>(&kept).expect("is read back"), data, "{kept}");
        }
        let error = |text: &str| text.parse::<InputData>().expect_err(text).to_string();
        assert!(error("k").contains("NAME:SETTING") && error("k:").contains("NAME:SETTING"));
        assert_eq!(error("k:growth=much"), "`growth` of `k` cannot be `much`; expected a number");
        assert!(error("k:speed=1").starts_with("`k` has the setting `speed`, which is unknown; settings are scale=S, growth=G"));
        assert_eq!(error("k:bits=2"), "`bits` of `k` cannot be `2`; expected the share of 1, from 0 to 1");
        assert_eq!(error("k:range=5..1"), "`range` of `k` cannot be `5..1`; expected two numbers that ascend, such as 0..100");
        assert_eq!(error("k:ids=0"), "`ids` of `k` cannot be `0`; expected how many there are, such as 8");
        assert_eq!(error("k:ids=8,lengths"), "`k` is said to hold both ids=8 and lengths; give one of them");
    }

    /// A record of an earlier version has neither a word for values nor another form of the rest.
    #[test]
    fn data_of_earlier_records_are_read() {
        let data: InputData = serde_json::from_str(r#"{"k":{"scale":2.0,"growth":300.0}}"#).expect("is read");
        assert_eq!(data, "k:scale=2,growth=300".parse().expect("data"));
        assert_eq!(serde_json::to_string(&data).expect("serializes"), r#"{"k":{"scale":2.0,"growth":300.0}}"#);
    }

    #[test]
    fn rows_grow_linearly_from_a_tenth() {
        let d = Distribution { scale: 2.0, growth: Some(300.0), ..Distribution::default() };
        let near = |row: usize, factor: f64| (d.factor(row, 3) - factor).abs() < 1e-9;
        assert!(near(0, 0.2) && near(1, 300.1) && near(2, 600.0));
        assert_eq!(Distribution::default().factor(5, 7), 1.0);
        assert_eq!(Distribution { growth: Some(3.0), ..Distribution::default() }.factor(0, 1), 0.1);
    }
}
