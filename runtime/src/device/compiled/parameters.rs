//! The parameter block and the grid of a launch, from a generated kernel's [`Abi`] and the call's arguments.
//!
//! Scratch tensors are arguments after those of the call, in their order. Names are resolved to positions once; packing a call then copies numbers and allocates nothing.

use std::ops::Range;

use flashtile_codegen::{Abi, Blocks, Field, GridDim, Scratch, SizeTerm};
use flashtile_dsl::analysis::reach::MAX_SIZE;
use flashtile_dsl::ir;

use super::scratch::argument_named;
use super::term::{Term, size_named};
use crate::device::CallArgument;

/// Bytes that kernel parameters may have in all (CUDA C++ Programming Guide, "Function Parameters").
pub(crate) const MAX_BYTES: usize = 4096;

/// Programs that a workspace has room for to begin with: more than any GPU runs at once, and parts are for few programs.
const PROGRAMS_AT_FIRST: u64 = 1024;

/// One field, resolved.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Source {
    Pointer(usize),
    Stride(usize, usize),
    Size(usize),
    Scalar(usize),
    Workspace,
}

/// How to fill the parameter block and the grid of a launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Parameters {
    fields: Vec<(usize, Source)>,
    /// Extent and block size of each grid dimension.
    grid: Vec<(Term, i64)>,
    blocks: Blocks,
    cluster: i64,
    /// Bytes of zeroed workspace, and bytes more for each program; 0 for none.
    workspace: (u64, u64),
    /// Which of its bytes are kept from launch to launch.
    kept: Range<usize>,
}

impl Parameters {
    /// Resolves the names of an ABI. An error names what the kernel does not have, which is a fault of the generator.
    pub fn new(abi: &Abi, kernel: &ir::Kernel, scratch: &[Scratch]) -> Result<Self, String> {
        let param = |name: &str| argument_named(kernel, scratch, name);
        let size = |name: &str| size_named(kernel, name);
        let (offsets, bytes) = abi.layout();
        if bytes + 128 * abi.tensor_maps.len() > MAX_BYTES {
            return Err(format!("{bytes} bytes of parameters, {MAX_BYTES} are possible"));
        }
        let (mut workspace, mut kept_bytes) = ((0, 0), 0..0);
        let mut fields = Vec::with_capacity(offsets.len());
        for (offset, field) in offsets.into_iter().zip(&abi.fields) {
            let source = match field {
                Field::Pointer(name) => Source::Pointer(param(name)?),
                Field::Stride(name, dimension) => Source::Stride(param(name)?, *dimension as usize),
                Field::Size(name) => Source::Size(size(name)?),
                Field::Scalar(name) => Source::Scalar(param(name)?),
                Field::Workspace { bytes, per_program, kept } if workspace == (0, 0) => {
                    workspace = (*bytes, *per_program);
                    kept_bytes = (bytes - kept) as usize..*bytes as usize;
                    Source::Workspace
                }
                Field::Workspace { .. } => return Err("more than one workspace".to_owned()),
            };
            fields.push((offset, source));
        }
        let term = |t: &SizeTerm| Term::new(t, kernel);
        let mut grid = Vec::with_capacity(abi.grid.len());
        for dim in &abi.grid {
            grid.push(match dim {
                GridDim::Each(t) => (term(t)?, 1),
                GridDim::Tiles(t, block) => (term(t)?, i64::from((*block).max(1))),
            });
        }
        let cluster = i64::from(abi.cluster.max(1));
        Ok(Self { fields, grid, blocks: abi.blocks.clone(), cluster, workspace, kept: kept_bytes })
    }

    /// Fills the parameter block.
    pub fn pack(&self, arguments: &[CallArgument<'_>], sizes: &[i64], workspace: u64, block: &mut [u8]) {
        let mut put = |offset: usize, bytes: &[u8]| block[offset..offset + bytes.len()].copy_from_slice(bytes);
        for (offset, source) in &self.fields {
            match *source {
                Source::Pointer(param) => match arguments[param] {
                    CallArgument::Tensor { address, .. } => put(*offset, &address.to_ne_bytes()),
                    CallArgument::F32(_) | CallArgument::I32(_) => unreachable!("checked: a tensor parameter"),
                },
                Source::Stride(param, dimension) => match arguments[param] {
                    CallArgument::Tensor { strides, .. } => put(*offset, &(strides[dimension] as i64).to_ne_bytes()),
                    CallArgument::F32(_) | CallArgument::I32(_) => unreachable!("checked: a tensor parameter"),
                },
                // Checked where sizes are solved: they are at most `MAX_SIZE`.
                Source::Size(size) => put(*offset, &(sizes[size] as i32).to_ne_bytes()),
                Source::Scalar(param) => match arguments[param] {
                    CallArgument::F32(x) => put(*offset, &x.to_ne_bytes()),
                    CallArgument::I32(x) => put(*offset, &x.to_ne_bytes()),
                    CallArgument::Tensor { .. } => unreachable!("checked: a scalar parameter"),
                },
                Source::Workspace => put(*offset, &workspace.to_ne_bytes()),
            }
        }
    }

    /// Bytes of zeroed workspace that a launch needs; `None` if they are more than any memory has.
    pub fn workspace(&self, sizes: &[i64]) -> Option<u64> {
        let (bytes, each) = self.workspace;
        if each == 0 {
            return Some(bytes);
        }
        u64::try_from(self.programs(sizes)?).ok()?.checked_mul(each)?.checked_add(bytes)
    }

    /// The bytes of a workspace that a launch leaves for the next one.
    pub fn kept(&self) -> Range<usize> {
        self.kept.clone()
    }

    /// Bytes of workspace to begin with, where what a launch needs depends on its sizes.
    pub fn workspace_at_first(&self) -> u64 {
        let (bytes, each) = self.workspace;
        bytes + each * PROGRAMS_AT_FIRST
    }

    fn programs(&self, sizes: &[i64]) -> Option<i64> {
        let mut programs: i64 = 1;
        for (term, block) in &self.grid {
            let extent = term.eval(sizes)?;
            programs = programs.checked_mul((extent + block - 1) / block)?;
        }
        Some(programs)
    }

    /// Blocks to launch on a device of so many multiprocessors; `None` if they are more than a grid can have.
    pub fn blocks(&self, sizes: &[i64], sms: u32) -> Option<u32> {
        // Blocks that stay count programs beyond the last one.
        let programs = self.programs(sizes).filter(|&programs| programs <= MAX_SIZE)?;
        let blocks = match self.blocks {
            Blocks::PerProgram => programs,
            Blocks::Persistent(per_sm) => programs.min(i64::from(per_sm) * i64::from(sms)),
        };
        // A grid is a whole number of clusters; blocks beyond the programs find no work.
        let blocks = (blocks + self.cluster - 1) / self.cluster * self.cluster;
        u32::try_from(blocks).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Backend, Memory};
    use flashtile_dsl::ir::{Builder, Direction, Elem, Param, ParamKind, SizeExpr, SizeKind, Span, TensorDecl};
    use std::sync::Arc;

    fn kernel() -> ir::Kernel {
        let mut b = Builder::new("copy");
        let d = b.size("D", SizeKind::Const);
        let n = b.size("N", SizeKind::Runtime);
        let tensor = TensorDecl { elem: Elem::F32, shape: vec![SizeExpr::size(n), SizeExpr::size(d)], direction: Direction::In };
        let param = |name: &str, kind| Param { name: name.into(), kind, span: Span::default() };
        b.kernel.params.push(param("x", ParamKind::Tensor(tensor)));
        b.kernel.params.push(param("scale", ParamKind::Scalar(Elem::F32)));
        b.finish()
    }

    fn abi(blocks: Blocks, cluster: u32) -> Abi {
        let term = SizeTerm { terms: vec![("N".into(), 1)], constant: 0, divisor: 1 };
        Abi {
            entry: "copy".into(),
            tensor_maps: vec![],
            fields: vec![
                Field::Size("N".into()),
                Field::Pointer("x".into()),
                Field::Scalar("scale".into()),
                Field::Stride("x".into(), 0),
                Field::Workspace { bytes: 64, per_program: 2, kept: 8 },
            ],
            grid: vec![GridDim::Tiles(term, 64)],
            blocks,
            threads: 128,
            shared_bytes: 0,
            cluster,
            registers: 0,
            early: false,
        }
    }

    fn memory() -> Arc<dyn Memory> {
        let cpu: Arc<dyn Backend> = crate::device::Cpu::device();
        cpu.allocate(16).expect("small")
    }

    #[test]
    fn fields_land_at_their_offsets() {
        let parameters = Parameters::new(&abi(Blocks::PerProgram, 1), &kernel(), &[]).expect("names are known");
        assert_eq!((parameters.workspace(&[8, 64]), parameters.workspace(&[8, 100])), (Some(66), Some(68)));
        let memory = memory();
        let (shape, strides) = ([100usize, 8], [24usize, 1]);
        let x = CallArgument::Tensor {
            memory: Some(&*memory),
            offset: 0,
            elem: Elem::F32,
            address: 0x1122_3344_5566_7788,
            shape: &shape,
            strides: &strides,
            writes: false,
        };
        let mut block = [0xffu8; 40];
        parameters.pack(&[x, CallArgument::F32(0.5)], &[8, 100], 0xabcd, &mut block);
        let mut expected = Vec::new();
        expected.extend(100i32.to_ne_bytes());
        expected.extend([0xff; 4]);
        expected.extend(0x1122_3344_5566_7788u64.to_ne_bytes());
        expected.extend(0.5f32.to_ne_bytes());
        expected.extend([0xff; 4]);
        expected.extend(24i64.to_ne_bytes());
        expected.extend(0xabcdu64.to_ne_bytes());
        assert_eq!(block[..], expected[..]);
    }

    #[test]
    fn the_grid_covers_every_program() {
        let blocks = |blocks, cluster, n| {
            Parameters::new(&abi(blocks, cluster), &kernel(), &[]).expect("names are known").blocks(&[8, n], 132)
        };
        assert_eq!(blocks(Blocks::PerProgram, 1, 0), Some(0));
        assert_eq!(blocks(Blocks::PerProgram, 1, 1), Some(1));
        assert_eq!(blocks(Blocks::PerProgram, 1, 64 * 1000 + 1), Some(1001));
        assert_eq!(blocks(Blocks::PerProgram, 2, 64 * 1000 + 1), Some(1002));
        assert_eq!(blocks(Blocks::Persistent(2), 1, 64 * 1000), Some(264));
        assert_eq!(blocks(Blocks::Persistent(2), 1, 64 * 10), Some(10));
        assert_eq!(blocks(Blocks::PerProgram, 1, 64 * MAX_SIZE), Some(MAX_SIZE as u32));
        let more = 64 * MAX_SIZE + 1;
        assert_eq!([blocks(Blocks::PerProgram, 1, more), blocks(Blocks::Persistent(2), 1, more)], [None; 2]);
    }

    #[test]
    fn an_unknown_name_is_an_error() {
        let mut abi = abi(Blocks::PerProgram, 1);
        abi.fields.push(Field::Pointer("y".into()));
        assert_eq!(Parameters::new(&abi, &kernel(), &[]).expect_err("no y"), "the kernel has no parameter `y`");
    }
}
