//! Safetensors: inputs by the names of parameters, outputs likewise.

use std::path::{Path, PathBuf};

use flashtile::{AnyTensor, Elem};
use flashtile_dsl::ir::{Kernel, Param, TensorDecl};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::failure::{Failure, Result};
use crate::files::{self, Written};

/// A file of tensors, read.
pub struct TensorFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// A tensor of a file: sound, but not yet compared with the shapes of others.
pub struct FileTensor<'a> {
    /// Element type.
    pub elem: Elem,
    /// Extents.
    pub shape: Vec<usize>,
    /// Little-endian elements.
    pub bytes: &'a [u8],
}

impl TensorFile {
    /// Reads a file.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), bytes: files::read(path)? })
    }

    fn parse(&self) -> Result<SafeTensors<'_>> {
        SafeTensors::deserialize(&self.bytes).map_err(|e| Failure::TensorFile {
            path: self.path.display().to_string(),
            reason: format!("is no safetensors file: {e}"),
        })
    }

    /// Names of its tensors, sorted.
    pub fn names(&self) -> Result<Vec<String>> {
        let mut names: Vec<String> = self.parse()?.names().into_iter().map(ToOwned::to_owned).collect();
        names.sort();
        Ok(names)
    }

    /// The tensor of a parameter.
    pub fn input(&self, kernel: &Kernel, param: &Param, declared: &TensorDecl) -> Result<FileTensor<'_>> {
        let fault = |reason: String| Failure::Tensor { name: param.name.clone(), reason };
        let names = self.names()?;
        let tensors = self.parse()?;
        let Ok(view) = tensors.tensor(&param.name) else {
            let held = if names.is_empty() { "no tensors".to_owned() } else { names.join(", ") };
            return Err(fault(format!("is missing in {}, which holds {held}", self.path.display())));
        };
        let elem = elem_of(view.dtype()).ok_or_else(|| {
            fault(format!(
                "holds {:?}; expected F32, F16, BF16, I32, BOOL, U8, I8, F8_E4M3 or F8_E5M2 (declared {})",
                view.dtype(),
                kernel.elem_name(declared.elem)
            ))
        })?;
        let shape = view.shape().to_vec();
        if shape.len() != declared.shape.len() {
            let expected: Vec<String> = declared.shape.iter().map(|size| kernel.size_text(size)).collect();
            return Err(fault(format!(
                "must have {} dimensions ({}), but has shape {shape:?}",
                expected.len(),
                expected.join(", ")
            )));
        }
        let at = view.data().as_ptr() as usize - self.bytes.as_ptr() as usize;
        let width = elem.bytes().expect("an element type in memory");
        if !at.is_multiple_of(width) {
            return Err(fault(format!(
                "is misaligned: it begins at byte {at} of {}, which is not a multiple of its {width}-byte elements; \
                 save the file again with a current safetensors",
                self.path.display()
            )));
        }
        Ok(FileTensor { elem, shape, bytes: view.data() })
    }
}

/// Writes tensors by name. A reader of the file sees the old one or the whole new one.
pub fn write(path: &Path, tensors: &[(String, AnyTensor)]) -> Result<Written> {
    let refused = |name: &str, reason: String| Failure::Tensor { name: name.to_owned(), reason };
    let bytes = tensors.iter().map(|(_, t)| t.to_bytes()).collect::<flashtile::Result<Vec<_>>>()?;
    let mut views = Vec::new();
    for ((name, tensor), bytes) in tensors.iter().zip(&bytes) {
        let dtype = dtype_of(tensor.elem()).ok_or_else(|| refused(name, "has an element type that no file can hold".into()))?;
        let view = TensorView::new(dtype, tensor.shape().to_vec(), bytes);
        views.push((name.as_str(), view.map_err(|e| refused(name, e.to_string()))?));
    }
    let file = safetensors::serialize(views, None)
        .map_err(|e| Failure::TensorFile { path: path.display().to_string(), reason: format!("cannot be made: {e}") })?;
    files::write(path, &file)
}

fn elem_of(dtype: Dtype) -> Option<Elem> {
    Some(match dtype {
        Dtype::F32 => Elem::F32,
        Dtype::F16 => Elem::F16,
        Dtype::BF16 => Elem::Bf16,
        Dtype::I32 => Elem::I32,
        Dtype::BOOL => Elem::Bool,
        Dtype::U8 => Elem::U8,
        Dtype::I8 => Elem::I8,
        Dtype::F8_E4M3 => Elem::F8E4M3,
        Dtype::F8_E5M2 => Elem::F8E5M2,
        _ => return None,
    })
}

fn dtype_of(elem: Elem) -> Option<Dtype> {
    Some(match elem {
        Elem::F32 => Dtype::F32,
        Elem::F16 => Dtype::F16,
        Elem::Bf16 => Dtype::BF16,
        Elem::I32 => Dtype::I32,
        Elem::Bool => Dtype::BOOL,
        Elem::U8 => Dtype::U8,
        Elem::I8 => Dtype::I8,
        Elem::F8E4M3 => Dtype::F8_E4M3,
        Elem::F8E5M2 => Dtype::F8_E5M2,
        Elem::Generic(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_hold_every_element_type() {
        for elem in Elem::ALL {
            let dtype = dtype_of(elem).expect("a file can hold it");
            assert_eq!((elem_of(dtype), Some(dtype.bitsize() / 8)), (Some(elem), elem.bytes()), "{dtype:?}");
        }
        assert_eq!((dtype_of(Elem::Generic(0)), elem_of(Dtype::F64)), (None, None));
    }
}
