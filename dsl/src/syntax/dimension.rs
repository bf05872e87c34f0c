//! Dimensions of tensors: a name of a size, a number, or a linear expression of both, such as `64`,
//! `D + 1` or `2 * N`.
//!
//! A dimension stands where Rust has a type, and neither `64` nor `D + 1` is a type of Rust. So
//! [`wrap`] makes the array type `[(); 64]` of each dimension that is no name, before the parser of
//! Rust sees it; the length of an array type is an expression.

use proc_macro2::{Delimiter, Group, Ident, Punct, Spacing, TokenStream, TokenTree};
use syn::{BinOp, Expr, Lit, Type};

use super::diagnostic::{Checked, Diagnostic};
use super::operand::SizeTree;
use super::position::bare;
use super::signature::{Header, quoted};
use crate::ir::{IndexOp, ParamKind, SizeExpr, SizeId, SizeKind, Span};

/// The item with array types for those dimensions of the tensors of its parameter list that are no
/// names.
pub(super) fn wrap(item: TokenStream) -> TokenStream {
    let list = |tree: TokenTree| match tree {
        TokenTree::Group(list) if list.delimiter() == Delimiter::Parenthesis => {
            TokenTree::Group(regroup(&list, parameters(list.stream())))
        }
        other => other,
    };
    item.into_iter().map(list).collect()
}

/// The parameters with array types in the shapes of tensors: `Tensor < element , ( dimensions ) >`.
fn parameters(list: TokenStream) -> TokenStream {
    let trees: Vec<TokenTree> = list.into_iter().collect();
    let of_tensor = |n: usize| {
        let mut before = trees[..n].iter().rev().take(4);
        before.any(|tree| matches!(tree, TokenTree::Ident(name) if name == "Tensor"))
    };
    let parameter = |(n, tree): (usize, &TokenTree)| match tree {
        TokenTree::Group(shape) if shape.delimiter() == Delimiter::Parenthesis && of_tensor(n) => {
            TokenTree::Group(regroup(shape, dimensions(shape.stream())))
        }
        other => other.clone(),
    };
    trees.iter().enumerate().map(parameter).collect()
}

fn dimensions(shape: TokenStream) -> TokenStream {
    let trees: Vec<TokenTree> = shape.into_iter().collect();
    let mut wrapped = TokenStream::new();
    for dimension in trees.split_inclusive(is_comma) {
        let (dimension, comma) = match dimension.split_last() {
            Some((comma, before)) if is_comma(comma) => (before, Some(comma.clone())),
            _ => (dimension, None),
        };
        match dimension {
            [] | [TokenTree::Ident(_)] => wrapped.extend(dimension.iter().cloned()),
            [.., last] => {
                let mut array = TokenStream::from(TokenTree::Group(Group::new(Delimiter::Parenthesis, TokenStream::new())));
                array.extend([TokenTree::Punct(Punct::new(';', Spacing::Alone))]);
                array.extend(dimension.iter().cloned());
                let mut array = Group::new(Delimiter::Bracket, array);
                // Where an expression ends too early, the parser points to the end of the group.
                array.set_span(last.span());
                wrapped.extend([TokenTree::Group(array)]);
            }
        }
        wrapped.extend(comma);
    }
    wrapped
}

fn is_comma(tree: &TokenTree) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == ',')
}

/// A group at the place of another.
fn regroup(group: &Group, stream: TokenStream) -> Group {
    let mut made = Group::new(group.delimiter(), stream);
    made.set_span(group.span());
    made
}

impl Header<'_> {
    /// The extent that a dimension of a tensor says.
    pub(super) fn dimension(&mut self, dim: &Type) -> Checked<SizeExpr> {
        let tree = match dim {
            Type::Path(path) if path.path.get_ident().is_some() => {
                let name = path.path.get_ident().expect("just seen");
                return Ok(SizeExpr::size(self.size_of(name)?));
            }
            Type::Array(array) => self.size_tree(&array.len)?,
            other => return Err(self.no_size(self.positions.of(other), quoted(other))),
        };
        let Type::Array(array) = dim else { unreachable!("a name has returned") };
        let span = self.positions.of(&array.len);
        let Some(extent) = tree.to_expr() else {
            let error = Diagnostic::new(span, "this dimension is not a linear expression of sizes")
                .label("not linear, or beyond 2^30")
                .help(
                    "sizes may be added, subtracted, and multiplied or divided by numbers; give any other dimension a name \
                     of its own, such as `R`: a launch takes its value from the shape of the tensor",
                );
            return Err(self.reporter.report(error));
        };
        if extent.as_constant().is_some_and(|extent| extent < 1) {
            let error = Diagnostic::new(span, "a dimension has at least one position");
            let label = format!("this is {extent}");
            return Err(self.reporter.report(error.label(label).help("write a number from 1")));
        }
        Ok(extent)
    }

    fn no_size(&self, span: Span, found: String) -> super::diagnostic::Reported {
        let error = Diagnostic::new(span, "expected a size").label(format!("found {found}"));
        self.reporter.report(error.help(
            "a dimension is a name, a number, or a sum of these such as `D + 1` or `2 * N`; a name that is no const generic \
             gets its value at launch",
        ))
    }

    /// An expression over sizes as it is written.
    fn size_tree(&mut self, expr: &Expr) -> Checked<SizeTree> {
        let span = self.positions.of(expr);
        match expr {
            Expr::Paren(paren) => self.size_tree(&paren.expr),
            Expr::Group(group) => self.size_tree(&group.expr),
            Expr::Lit(literal) => match &literal.lit {
                Lit::Int(int) if int.suffix().is_empty() && int.base10_parse::<i64>().is_ok() => {
                    Ok(SizeTree::Const(int.base10_parse().expect("just seen")))
                }
                other => Err(self.no_size(span, quoted(other))),
            },
            Expr::Path(path) => match path.path.get_ident() {
                Some(name) => Ok(SizeTree::Size(self.size_of(name)?)),
                None => Err(self.no_size(span, quoted(path))),
            },
            Expr::Binary(binary) => {
                let op = match &binary.op {
                    BinOp::Add(_) => IndexOp::Add,
                    BinOp::Sub(_) => IndexOp::Sub,
                    BinOp::Mul(_) => IndexOp::Mul,
                    BinOp::Div(_) => IndexOp::Div,
                    other => return Err(self.no_size(self.positions.of(other), quoted(other))),
                };
                // Both sides are checked even if one has an error.
                let (left, right) = (self.size_tree(&binary.left), self.size_tree(&binary.right));
                Ok(SizeTree::Op(op, Box::new(left?), Box::new(right?)))
            }
            other => Err(self.no_size(span, quoted(other))),
        }
    }

    /// The size of this name. A name that stands for nothing else yet is a size that a launch
    /// gives.
    fn size_of(&mut self, ident: &Ident) -> Checked<SizeId> {
        let (name, span) = (bare(ident), self.positions.of(ident));
        if self.builder.kernel.type_params.contains(&name) || self.builder.kernel.param_named(&name).is_some() {
            let error = Diagnostic::new(span, format!("`{name}` is not a size"))
                .label("declared as something else above")
                .help("use another name for the size");
            return Err(self.reporter.report(error));
        }
        let size = self.builder.size(&name, SizeKind::Runtime);
        self.mentioned.entry(size).or_insert(span);
        Ok(size)
    }

    /// Reports sizes that no shape determines: a launch finds the value of a size from a dimension
    /// in which all other sizes are const generics.
    pub(super) fn check_determined(&self) {
        let kernel = &self.builder.kernel;
        let at_launch = |id: &SizeId| kernel.sizes[*id].kind == SizeKind::Runtime;
        let tensors = kernel.params.values().filter_map(|param| match &param.kind {
            ParamKind::Tensor(tensor) => Some(tensor),
            ParamKind::Scalar(_) => None,
        });
        let extents: Vec<&SizeExpr> = tensors.flat_map(|tensor| &tensor.shape).collect();
        for (&size, &span) in self.mentioned.iter().filter(|(size, _)| at_launch(size)) {
            let determines = |extent: &&SizeExpr| extent.sizes().filter(at_launch).eq([size]);
            if extents.iter().any(determines) {
                continue;
            }
            let name = kernel.size_name(size);
            let error = Diagnostic::new(span, format!("the value of `{name}` follows from no shape"))
                .label("stands only beside other sizes of the launch")
                .help(format!(
                    "declare a tensor with a dimension that is `{name}` alone, or give this dimension one name of its own"
                ));
            self.reporter.report(error);
        }
    }
}
