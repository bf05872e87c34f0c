//! Loading a module and launching its kernels.

use std::ops::Range;

use rayon::prelude::*;
use serde::Serialize;

use crate::finding::Finding;
use crate::machine::{Block, Counters, Launched, Progress};
use crate::memory::{GlobalMemory, Region, Traces, windows};
use crate::options::Options;
use crate::profile::Profile;
use crate::program::{Kernel as Program, Program as Loaded};
use crate::syntax::parse;
use crate::{LaunchError, LoadError};

/// A PTX module, every instruction of which the emulator knows.
#[derive(Clone, Debug)]
pub struct Module {
    loaded: Loaded,
}

impl Module {
    /// Loads a PTX text, such as NVRTC makes it. With `--generate-line-info` findings name lines of the kernel text.
    ///
    /// # Errors
    /// [`LoadError`] with the line, for text that is not PTX and for instructions that the emulator does not know.
    pub fn load(text: &str) -> Result<Self, LoadError> {
        Ok(Self { loaded: Loaded::new(&parse(text)?)? })
    }

    /// What `.target` says, such as `sm_90a`.
    pub fn target(&self) -> &str {
        &self.loaded.target
    }

    /// Names of the kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.loaded.kernels.iter().map(|k| k.name.as_str())
    }

    /// The kernel of a name.
    ///
    /// # Errors
    /// [`LoadError::NoKernel`] with the names that there are.
    pub fn kernel(&self, name: &str) -> Result<Kernel<'_>, LoadError> {
        match self.loaded.kernels.iter().find(|k| k.name == name) {
            Some(kernel) => Ok(Kernel { loaded: &self.loaded, kernel }),
            None => Err(LoadError::NoKernel { name: name.to_owned(), kernels: self.kernels().map(str::to_owned).collect() }),
        }
    }
}

/// A kernel of a module.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<'m> {
    loaded: &'m Loaded,
    kernel: &'m Program,
}

/// How a kernel is launched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launch {
    /// Blocks of the grid along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Bytes of each kernel parameter, in order.
    pub parameters: Vec<Vec<u8>>,
    /// Addresses that launches before this one may still be writing, where it may begin before they have ended: a thread touches
    /// them after `griddepcontrol.wait` only. Empty where it begins when they have ended.
    pub pending: Vec<Range<u64>>,
}

/// What came of a launch. What the kernel computed is in the memory.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Faults, by block; of a block 64 kinds at most, and no more than 1024 in all.
    pub findings: Vec<Finding>,
    /// What each instruction did, if asked for.
    pub profile: Option<Profile>,
    /// Instructions that warps executed.
    pub warp_instructions: u64,
    /// The same times the lanes that took part.
    pub lane_instructions: u64,
}

impl Kernel<'_> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.kernel.name
    }

    /// Bytes of each parameter.
    pub fn parameter_bytes(&self) -> impl Iterator<Item = usize> {
        self.kernel.parameters.iter().map(|p| p.bytes as usize)
    }

    /// Runs the kernel. A block in which something is wrong goes on as far as it can; a launch always ends.
    ///
    /// # Errors
    /// [`LaunchError`] if the parameters or the shape do not fit the kernel.
    pub fn launch(&self, memory: &GlobalMemory, launch: &Launch, options: &Options) -> Result<Report, LaunchError> {
        let parameters = self.parameters(launch)?;
        self.check_shape(launch)?;
        let variables = Region::new(windows::MODULE, self.loaded.variables.len() as u64);
        variables.fill(0, &self.loaded.variables);
        let progress = Progress::new();
        let warps = launch.block.iter().product::<u32>().div_ceil(32);
        let traces = options.races.then(|| Traces::new(memory.sizes(), warps));
        let launched = Launched {
            kernel: self.kernel,
            memory,
            variables: &variables,
            parameters: &parameters,
            options,
            grid: launch.grid,
            threads: launch.block,
            dynamic_shared: launch.shared_bytes,
            pending: &launch.pending,
            progress: &progress,
            traces: traces.as_ref(),
        };
        let cluster = self.kernel.cluster;
        let [x, y, z] = [0, 1, 2].map(|d| u64::from(launch.grid[d] / cluster[d]));
        let clusters = x * y * z;
        let blocks = |n: u32| -> Vec<[u32; 3]> {
            let n = u64::from(n);
            let first = [n % x, n / x % y, n / x / y];
            let ranks = 0..cluster.iter().product::<u32>();
            let within = |rank: u32| [rank % cluster[0], rank / cluster[0] % cluster[1], rank / cluster[0] / cluster[1]];
            let id = |rank: u32| [0, 1, 2].map(|d| first[d] as u32 * cluster[d] + within(rank)[d]);
            ranks.map(id).collect()
        };
        let run = |n: u64| {
            let n = u32::try_from(n).expect("fewer than 2^32 blocks, as the launch was checked");
            let outcome = Block::new(&launched, n, &blocks(n)).run();
            let findings = outcome.record.finish(self.loaded, self.kernel, n, blocks, warps);
            (findings, outcome.counters, outcome.executed)
        };
        let merge = |mut a: Outcome, b: Outcome| {
            a.0.extend(b.0);
            a.0.truncate(MOST_FINDINGS);
            if a.1.is_empty() {
                a.1 = b.1;
            } else {
                a.1.iter_mut().zip(&b.1).for_each(|(a, b)| a.add(b));
            }
            a.2 = [a.2[0] + b.2[0], a.2[1] + b.2[1]];
            a
        };
        let none = || (vec![], vec![], [0; 2]);
        // Each takes the next that nobody has, so that they begin in order.
        let runner = || {
            let mut all = none();
            let mut had_one = false;
            while let Some(n) = progress.next(clusters, had_one) {
                had_one = true;
                all = merge(all, run(n));
            }
            all
        };
        let (mut findings, counters, executed) = if options.parallel {
            let runners = rayon::current_num_threads().min(clusters as usize);
            (0..runners).into_par_iter().with_max_len(1).map(|_| runner()).reduce(none, merge)
        } else {
            runner()
        };
        findings.sort_by_key(|f| (f.block[2], f.block[1], f.block[0]));
        let profile = options.profile.then(|| Profile::new(self.loaded, self.kernel, &counters));
        Ok(Report { findings, profile, warp_instructions: executed[0], lane_instructions: executed[1] })
    }

    fn parameters(&self, launch: &Launch) -> Result<Vec<u8>, LaunchError> {
        let (expected, found) = (self.kernel.parameters.len(), launch.parameters.len());
        if expected != found {
            return Err(LaunchError::ParameterCount { expected, found });
        }
        let mut all = vec![0; self.kernel.parameter_bytes as usize];
        for (index, (place, bytes)) in self.kernel.parameters.iter().zip(&launch.parameters).enumerate() {
            let (expected, found) = (place.bytes as usize, bytes.len());
            if expected != found {
                return Err(LaunchError::ParameterSize { index, expected, found });
            }
            all[place.offset as usize..][..found].copy_from_slice(bytes);
        }
        Ok(all)
    }

    fn check_shape(&self, launch: &Launch) -> Result<(), LaunchError> {
        let threads = launch.block.iter().map(|&n| u64::from(n)).product::<u64>();
        if threads == 0 || threads > 1024 {
            return Err(LaunchError::Shape(format!("{threads} threads in a block; 1 to 1024 are possible")));
        }
        if let Some(most) = self.kernel.max_threads
            && threads > u64::from(most)
        {
            return Err(LaunchError::Shape(format!("{threads} threads in a block; the kernel was compiled for {most}")));
        }
        let [x, y, z] = launch.grid.map(u64::from);
        if x * y * z > u64::from(u32::MAX) {
            return Err(LaunchError::Shape(format!("{x} x {y} x {z} blocks; the emulator counts up to {}", u32::MAX)));
        }
        let cluster = self.kernel.cluster;
        let blocks: u32 = cluster.iter().fold(1, |all, &n| all.saturating_mul(n));
        if blocks > 16 || (0..3).any(|d| !launch.grid[d].is_multiple_of(cluster[d])) {
            let shape = format!("clusters of {cluster:?} blocks in a grid of {:?}", launch.grid);
            return Err(LaunchError::Shape(format!("{shape}: it must be a whole number of them, and no GPU has more than 16")));
        }
        let shared = u64::from(self.kernel.static_shared) + u64::from(launch.shared_bytes);
        if shared > 227 << 10 {
            return Err(LaunchError::Shape(format!("{shared} bytes of shared memory; no GPU has more than {}", 227 << 10)));
        }
        Ok(())
    }
}

/// Findings kept of a launch.
const MOST_FINDINGS: usize = 1024;

/// Findings, counters and instructions of blocks.
type Outcome = (Vec<Finding>, Vec<Counters>, [u64; 2]);
