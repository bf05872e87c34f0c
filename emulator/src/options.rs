//! How a launch is executed.

use std::fmt;
use std::str::FromStr;

/// When asynchronous copies and products take effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Landing {
    /// As late as their wait allows: until then shared memory and accumulators hold what was there before.
    #[default]
    Late,
    /// As soon as they are issued.
    Early,
    /// At random in between.
    Random,
}

/// Which warp goes on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Order {
    /// The first that can, as far as it can: warps are as far apart as barriers let them be.
    #[default]
    Forward,
    /// The last that can, as far as it can.
    Backward,
    /// In turn, one instruction each.
    Rotating,
    /// At random, for a random number of instructions.
    Random,
}

/// How a launch is executed. Equal options give equal results and findings, but for kernels whose blocks communicate
/// through global memory while [`Options::parallel`] is set.
///
/// ```
/// use flashtile_emulator::{Landing, Options, Order};
/// let options = Options::random(7);
/// assert_eq!((options.landing, options.order, options.seed), (Landing::Random, Order::Random, 7));
/// assert_eq!(options.to_string(), "landing=random,order=random,seed=7");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// When asynchronous operations take effect.
    pub landing: Landing,
    /// Which warp goes on.
    pub order: Order,
    /// Seed of what is random; each block draws from its own stream.
    pub seed: u64,
    /// Look for races in shared memory. Reads of uninitialised memory and of copies in flight are always found.
    pub races: bool,
    /// Count what each instruction does.
    pub profile: bool,
    /// Run blocks on the threads of the current rayon pool, instead of one after another.
    pub parallel: bool,
    /// Most instructions that the warps of a block execute while nothing happens that another warp could see: more are an
    /// endless loop. A block that touches no page of global memory for the first time, and so does not advance, ends after
    /// 16 times as many, and 1/256 of it for each page of 4 KiB that it has touched.
    pub stall_limit: u64,
    /// Most instructions of all warps of a block, whatever they do.
    pub instruction_limit: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            landing: Landing::Late,
            order: Order::Forward,
            seed: 0,
            races: true,
            profile: false,
            parallel: true,
            stall_limit: 1 << 22,
            instruction_limit: 1 << 40,
        }
    }
}

/// As printed with a finding, so that a run can be repeated: `landing=late,order=forward,seed=0`.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let landing = match self.landing {
            Landing::Late => "late",
            Landing::Early => "early",
            Landing::Random => "random",
        };
        let order = match self.order {
            Order::Forward => "forward",
            Order::Backward => "backward",
            Order::Rotating => "rotating",
            Order::Random => "random",
        };
        write!(f, "landing={landing},order={order},seed={}", self.seed)
    }
}

/// Why a text does not say how a launch is executed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OptionsError {
    /// A setting that there is not.
    #[error(
        "`{0}` is no option of an execution; expected landing=late|early|random, order=forward|backward|rotating|random, seed=N"
    )]
    Unknown(String),
    /// Of two values one would be ignored.
    #[error("`{0}` is given more than once; give it one value")]
    Twice(String),
}

/// The form that [`Options`] are printed in; what is left out keeps its default.
///
/// ```
/// use flashtile_emulator::{Landing, Options};
/// let options: Options = "landing=early,seed=3".parse()?;
/// assert_eq!((options.landing, options.seed), (Landing::Early, 3));
/// assert_eq!(options.to_string().parse(), Ok(options));
/// assert!("landing=never".parse::<Options>().is_err());
/// assert!("seed=3,seed=4".parse::<Options>().is_err());
/// # Ok::<(), flashtile_emulator::OptionsError>(())
/// ```
impl FromStr for Options {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Self, OptionsError> {
        let mut options = Self::default();
        let unknown = |item: &str| OptionsError::Unknown(item.to_owned());
        let mut names = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').ok_or_else(|| unknown(item))?;
            if names.contains(&name) {
                return Err(OptionsError::Twice(name.to_owned()));
            }
            names.push(name);
            match (name, value) {
                ("landing", "late") => options.landing = Landing::Late,
                ("landing", "early") => options.landing = Landing::Early,
                ("landing", "random") => options.landing = Landing::Random,
                ("order", "forward") => options.order = Order::Forward,
                ("order", "backward") => options.order = Order::Backward,
                ("order", "rotating") => options.order = Order::Rotating,
                ("order", "random") => options.order = Order::Random,
                ("seed", seed) => options.seed = seed.parse().map_err(|_| unknown(item))?,
                _ => return Err(unknown(item)),
            }
        }
        Ok(options)
    }
}

impl Options {
    /// A random schedule, replayable by its seed.
    pub fn random(seed: u64) -> Self {
        Self { landing: Landing::Random, order: Order::Random, seed, ..Self::default() }
    }
}

/// A small generator of random numbers (SplitMix64: Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        random.next();
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below a bound that is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
