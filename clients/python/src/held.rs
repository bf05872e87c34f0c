//! What Python functions hold, as a key: two calls whose functions have the same key are traced
//! into the same kernel.
//!
//! A key has the code of each function and what its closure, globals, defaults and attributes hold,
//! as far as the code reads it. Tensors are in it by number, type and shape: others may take their
//! place. All of it is looked at in each call, since any of it can change between calls.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use flashtile::client::TensorForm;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};
use smallvec::SmallVec;

use crate::form::Seen;
use crate::host::Host;
use crate::lock::lock;

/// Functions whose code is known; beyond that all are forgotten.
const MOST_KNOWN: usize = 256;

/// How deep functions and lists may hold each other.
const DEEPEST: usize = 64;

/// What tells kinds of objects from each other.
#[derive(Debug)]
pub(crate) struct Types {
    /// `types.FunctionType`, `types.BuiltinFunctionType`, `types.ModuleType`.
    pub function: Py<PyAny>,
    pub builtin: Py<PyAny>,
    pub module: Py<PyAny>,
    /// `functools.partial`, `enum.Enum`.
    pub partial: Py<PyAny>,
    pub enumeration: Py<PyAny>,
    /// `torch.Tensor`.
    pub tensor: Py<PyAny>,
    /// Types whose values are compared by `==`, besides numbers.
    pub values: Py<PyTuple>,
    /// Modules whose names mean the same for as long as the process runs.
    pub libraries: Vec<String>,
    /// Functions of these that tell what is another thing in each call.
    pub state: Vec<Py<PyAny>>,
}

/// Looks at what functions hold.
#[derive(Debug)]
pub(crate) struct Holdings {
    types: Types,
    /// What is known of code: a function of the code and of the globals that it reads.
    look: Py<PyAny>,
    known: Mutex<Vec<Arc<Code>>>,
}

/// What is known of the code of a function.
#[derive(Debug)]
struct Code {
    /// Held, so that its identity stays its own.
    code: Py<PyAny>,
    /// Names of globals that the function, or one inside of it, may read, with the attributes that
    /// it reads of each, and whether it does something else with it too.
    names: Vec<(Py<PyString>, Vec<Py<PyString>>, bool)>,
    /// Whether it may read what its names do not tell.
    is_opaque: bool,
    /// The same of what each cell of its closure holds.
    cells: Vec<(Vec<Py<PyString>>, bool)>,
    /// How many arguments it takes by their places, and how many by their names alone.
    places: usize,
    names_alone: usize,
}

/// A part of a key. What has parts is followed by their number, so that keys are read in one way.
#[derive(Debug)]
enum Token {
    Nothing,
    /// A global that there is not, or an attribute.
    Missing,
    /// What is being looked at already, by its place among what is.
    Again(usize),
    /// Of an object that is the same for as long as it lives.
    Object(Py<PyAny>),
    /// Parts that follow, of an object of a type if they are not of a function.
    Parts(Option<Py<PyType>>, usize),
    /// A number of a type.
    Integer(Py<PyType>, i64),
    Float(Py<PyType>, u64),
    /// What is compared by `==`, of a type.
    Value(Py<PyType>, Py<PyAny>),
    /// A tensor by its number.
    Tensor(usize),
    /// The type and the shape of a tensor that kernels do not read as it is.
    Typed(Py<PyAny>, Py<PyAny>),
}

/// Those of most functions are on the stack.
type Tokens = SmallVec<[Token; 16]>;

/// What functions hold, as a key.
#[pyclass(module = "flashtile._flashtile", frozen)]
#[derive(Clone, Debug)]
pub(crate) struct HeldKey {
    tokens: Arc<[Token]>,
    /// Of the tensors that kernels read as they are; strides do not count.
    forms: Arc<[Option<TensorForm>]>,
    hash: u64,
}

/// A tensor that functions hold; how it lies in memory if kernels read it as it is.
pub(crate) type HeldTensor<'py> = (Bound<'py, PyAny>, Option<Seen>);

/// What functions hold.
#[derive(Debug)]
pub(crate) struct Held<'py> {
    /// What makes a key; `None` if one of them holds what has none, so that it is traced at each call.
    tokens: Option<Tokens>,
    /// The tensors, each once.
    pub tensors: Vec<HeldTensor<'py>>,
}

/// One look at what functions hold.
struct Look<'a, 'py> {
    holdings: &'a Holdings,
    host: &'a Host,
    py: Python<'py>,
    tokens: Tokens,
    tensors: Vec<HeldTensor<'py>>,
    /// What is being looked at, outermost first.
    inside: SmallVec<[*mut pyo3::ffi::PyObject; 8]>,
    /// Whether the outermost function was found by a name too.
    is_named: bool,
}

/// Why a look ends early.
enum End {
    /// Something has no key.
    Unknown,
    Raised(PyErr),
}

impl From<PyErr> for End {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl Holdings {
    pub fn new(types: Types, look: Py<PyAny>) -> Self {
        Self { types, look, known: Mutex::default() }
    }

    /// What functions hold, each with how many arguments it is called with; `None` stands for none.
    pub fn of<'py>(&self, py: Python<'py>, functions: &[(&Bound<'py, PyAny>, usize)]) -> PyResult<Held<'py>> {
        let host = Host::get(py)?;
        let (tokens, inside) = (Tokens::new(), SmallVec::new());
        let mut look = Look { holdings: self, host, py, tokens, tensors: Vec::new(), inside, is_named: false };
        let seen = functions.iter().try_for_each(|(function, given)| look.called(function, *given));
        let tokens = match seen {
            Ok(()) => Some(look.tokens),
            Err(End::Unknown) => None,
            Err(End::Raised(error)) => return Err(error),
        };
        Ok(Held { tokens, tensors: look.tensors })
    }

    /// What is known of the code of a function.
    fn code(&self, code: &Bound<'_, PyAny>, function: &Bound<'_, PyAny>) -> PyResult<Arc<Code>> {
        let is_it = |known: &&Arc<Code>| known.code.as_ptr() == code.as_ptr();
        if let Some(known) = lock(&self.known).iter().find(is_it) {
            return Ok(known.clone());
        }
        // No lock is held: Python runs, and may come here again.
        let globals = function.getattr(intern!(code.py(), "__globals__"))?;
        let found = self.look.bind(code.py()).call1((code, globals))?;
        let (names, is_opaque, cells) = found.extract()?;
        let count = |name: &Bound<'_, PyString>| code.getattr(name)?.extract();
        let (places, names_alone) = (count(intern!(code.py(), "co_argcount"))?, count(intern!(code.py(), "co_kwonlyargcount"))?);
        let made = Arc::new(Code { code: code.clone().unbind(), names, is_opaque, cells, places, names_alone });
        let mut known = lock(&self.known);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.push(made.clone());
        Ok(made)
    }
}

impl<'py> Look<'_, 'py> {
    fn types(&self) -> &Types {
        &self.holdings.types
    }

    /// A function that is called with so many arguments, by their places. It reads attributes of
    /// its own by a name that stands for it.
    fn called(&mut self, x: &Bound<'py, PyAny>, given: usize) -> Result<(), End> {
        match x.get_type().is(&self.types().function) {
            true => {
                self.is_named = false;
                self.within(x, |look| look.function(x, Some(given)))
            }
            false => self.object(x),
        }
    }

    fn object(&mut self, x: &Bound<'py, PyAny>) -> Result<(), End> {
        if x.is_none() {
            self.tokens.push(Token::Nothing);
            return Ok(());
        }
        if let Some(at) = self.inside.iter().position(|other| *other == x.as_ptr()) {
            self.tokens.push(Token::Again(at));
            // Of one that is called its attributes are looked at where it is named.
            let is_called = at == 0 && !std::mem::replace(&mut self.is_named, true);
            return if is_called && x.get_type().is(&self.types().function) { self.attributes(x) } else { Ok(()) };
        }
        if self.inside.len() > DEEPEST {
            return Err(End::Unknown);
        }
        let kind = x.get_type();
        let is_function = kind.is(&self.types().function);
        if (is_function || kind.is(&self.types().builtin)) && self.types().state.iter().any(|known| known.is(x)) {
            return Err(End::Unknown);
        }
        if is_function {
            // Whoever holds it may read its attributes.
            return self.within(x, |look| {
                look.function(x, None)?;
                look.attributes(x)
            });
        }
        if self.host.is_plain(x) || x.is_instance(self.types().tensor.bind(self.py))? {
            return self.tensor(x);
        }
        let is_enumerated = x.is_instance(self.types().enumeration.bind(self.py))?;
        let is_basic = x.is_instance_of::<PyInt>() || x.is_instance_of::<PyFloat>() || x.is_instance_of::<PyString>();
        let is_list = x.is_instance_of::<PyTuple>() || x.is_instance_of::<PyList>();
        // Attributes of other classes are not followed.
        let is_plain = match is_enumerated {
            true => self.has_members_alone(&kind)? && self.is_member_alone(x)?,
            false => !(is_basic || is_list) || self.is_known(&kind)?,
        };
        if !is_plain {
            return Err(End::Unknown);
        }
        if self.value(x, &kind)? {
            return Ok(());
        }
        if is_list {
            return self.within(x, |look| look.parts(Some(&kind), x.try_iter()?));
        }
        if x.is_instance(self.types().partial.bind(self.py))? {
            return self.within(x, |look| look.partial(x, &kind));
        }
        if self.is_fixed(x)? {
            self.tokens.push(Token::Object(x.clone().unbind()));
            return Ok(());
        }
        let module = kind.getattr(intern!(self.py, "__module__"))?;
        if module.cast::<PyString>().is_ok_and(|module| module == "numpy") {
            let shape = x.getattr_opt(intern!(self.py, "shape"))?;
            if shape.is_some_and(|shape| shape.cast::<PyTuple>().is_ok_and(|shape| shape.is_empty())) {
                self.tokens.push(Token::Parts(Some(kind.unbind()), 1));
                let item = x.call_method0(intern!(self.py, "item"))?;
                return self.object(&item);
            }
        }
        if is_enumerated {
            self.tokens.push(Token::Object(x.clone().unbind()));
            let value = x.getattr(intern!(self.py, "value"))?;
            return self.within(x, |look| look.object(&value));
        }
        Err(End::Unknown)
    }

    /// Looks at what an object holds.
    fn within(&mut self, x: &Bound<'py, PyAny>, look: impl FnOnce(&mut Self) -> Result<(), End>) -> Result<(), End> {
        self.inside.push(x.as_ptr());
        look(self)?;
        self.inside.pop();
        Ok(())
    }

    fn parts(
        &mut self,
        of: Option<&Bound<'py, PyType>>,
        parts: impl Iterator<Item = PyResult<Bound<'py, PyAny>>>,
    ) -> Result<(), End> {
        let of = || of.map(|kind| kind.clone().unbind());
        let opened = self.tokens.len();
        self.tokens.push(Token::Parts(None, 0));
        let mut count = 0;
        for part in parts {
            self.object(&part?)?;
            count += 1;
        }
        self.tokens[opened] = Token::Parts(of(), count);
        Ok(())
    }

    /// Numbers and what is compared as they are; says whether it is that.
    fn value(&mut self, x: &Bound<'py, PyAny>, kind: &Bound<'py, PyType>) -> PyResult<bool> {
        let of = || kind.clone().unbind();
        let token = if x.is_instance_of::<PyBool>() || x.is_instance_of::<PyInt>() {
            match x.extract::<i64>() {
                Ok(number) => Token::Integer(of(), number),
                Err(_) => Token::Value(of(), x.clone().unbind()),
            }
        } else if let Ok(number) = x.cast::<PyFloat>() {
            // By its bits: zeros of two signs are two numbers, and one that is none is itself.
            let number = number.value();
            Token::Float(of(), if number.is_nan() { f64::NAN.to_bits() } else { number.to_bits() })
        } else if x.is_instance_of::<PyString>() || x.is_instance(self.types().values.bind(self.py))? {
            Token::Value(of(), x.clone().unbind())
        } else {
            return Ok(false);
        };
        self.tokens.push(token);
        Ok(true)
    }

    fn tensor(&mut self, x: &Bound<'py, PyAny>) -> Result<(), End> {
        if let Some(number) = self.tensors.iter().position(|(known, _)| known.is(x)) {
            self.tokens.push(Token::Tensor(number));
            return Ok(());
        }
        let seen = if self.host.is_plain(x) { Seen::read_at_once(self.host, x)? } else { None };
        self.tokens.push(Token::Tensor(self.tensors.len()));
        if seen.is_none() {
            let (dtype, shape) = (x.getattr(intern!(self.py, "dtype"))?, x.getattr(intern!(self.py, "shape"))?);
            self.tokens.push(Token::Typed(dtype.unbind(), shape.unbind()));
        }
        self.tensors.push((x.clone(), seen));
        Ok(())
    }

    /// What a function reads, of which it is known how many arguments it is called with or not.
    fn function(&mut self, x: &Bound<'py, PyAny>, given: Option<usize>) -> Result<(), End> {
        let py = self.py;
        let code = x.getattr(intern!(py, "__code__"))?;
        let known = self.holdings.code(&code, x)?;
        if known.is_opaque {
            return Err(End::Unknown);
        }
        self.tokens.push(Token::Object(code.unbind()));
        if !known.cells.is_empty() {
            let closure = x.getattr(intern!(py, "__closure__"))?;
            let closure = closure.cast::<PyTuple>().map_err(PyErr::from)?;
            // As many cells as the code says.
            for (cell, (read, is_read_otherwise)) in closure.iter().zip(&known.cells) {
                match cell.getattr(intern!(py, "cell_contents")) {
                    Ok(held) => self.named(&held, read, *is_read_otherwise)?,
                    // It is empty: Python says so when it is read.
                    Err(error) if error.is_instance_of::<PyValueError>(py) => return Err(End::Unknown),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        if !known.names.is_empty() {
            let globals = x.getattr(intern!(py, "__globals__"))?;
            let globals = globals.cast::<PyDict>().map_err(PyErr::from)?;
            for (name, read, is_read_otherwise) in &known.names {
                let held = match globals.get_item(name)? {
                    Some(held) => Some(held),
                    None => py.import(intern!(py, "builtins"))?.getattr_opt(name)?,
                };
                match held {
                    Some(held) => self.named(&held, read, *is_read_otherwise)?,
                    None => self.tokens.push(Token::Missing),
                }
            }
        }
        if known.places > given.unwrap_or(0) {
            match x.getattr(intern!(py, "__defaults__"))?.cast::<PyTuple>() {
                Ok(defaults) => self.parts(None, defaults.iter().map(Ok))?,
                Err(_) => self.tokens.push(Token::Nothing),
            }
        }
        if known.names_alone > 0 {
            match x.getattr(intern!(py, "__kwdefaults__"))?.cast::<PyDict>() {
                Ok(held) => self.items(held)?,
                Err(_) => self.tokens.push(Token::Nothing),
            }
        }
        Ok(())
    }

    /// The attributes that a function has been given.
    fn attributes(&mut self, x: &Bound<'py, PyAny>) -> Result<(), End> {
        let held = x.getattr(intern!(self.py, "__dict__"))?;
        self.items(held.cast::<PyDict>().map_err(PyErr::from)?)
    }

    fn partial(&mut self, x: &Bound<'py, PyAny>, kind: &Bound<'py, PyType>) -> Result<(), End> {
        self.tokens.push(Token::Parts(Some(kind.clone().unbind()), 4));
        self.object(&x.getattr(intern!(self.py, "func"))?)?;
        let args = x.getattr(intern!(self.py, "args"))?;
        self.parts(None, args.try_iter()?)?;
        let keywords = x.getattr(intern!(self.py, "keywords"))?;
        self.items(keywords.cast::<PyDict>().map_err(PyErr::from)?)?;
        self.attributes(x)
    }

    /// Names, and what they stand for.
    fn items(&mut self, held: &Bound<'py, PyDict>) -> Result<(), End> {
        self.tokens.push(Token::Parts(None, held.len()));
        for (name, x) in held.iter() {
            self.object(&name)?;
            self.object(&x)?;
        }
        Ok(())
    }

    /// What a function reads by a name, with the attributes that it reads of it. Attributes of
    /// attributes are not followed.
    fn named(&mut self, x: &Bound<'py, PyAny>, read: &[Py<PyString>], is_read_otherwise: bool) -> Result<(), End> {
        if self.host.is_plain(x) {
            self.object(x)?;
            return self.of_tensor(x, read);
        }
        let is_scope = x.is_instance_of::<PyType>() || x.is_instance(self.types().module.bind(self.py))?;
        if !is_scope {
            return self.object(x);
        }
        self.tokens.push(Token::Object(x.clone().unbind()));
        if self.is_fixed(x)? {
            return Ok(());
        }
        if is_read_otherwise {
            return Err(End::Unknown);
        }
        self.within(x, |look| {
            for name in read {
                match x.getattr_opt(name)? {
                    Some(held) => look.object(&held)?,
                    None => look.tokens.push(Token::Missing),
                }
            }
            Ok(())
        })
    }

    /// The attributes of a tensor that are its own, and whether it needs a gradient, where they are read.
    fn of_tensor(&mut self, x: &Bound<'py, PyAny>, read: &[Py<PyString>]) -> Result<(), End> {
        if read.is_empty() {
            return Ok(());
        }
        let own = x.getattr(intern!(self.py, "__dict__"))?;
        let own = own.cast::<PyDict>().map_err(PyErr::from)?;
        for name in read {
            let held = match name.bind(self.py) == "requires_grad" {
                true => Some(x.getattr(name)?),
                false => own.get_item(name)?,
            };
            match held {
                Some(held) => self.within(x, |look| look.object(&held))?,
                None => self.tokens.push(Token::Missing),
            }
        }
        Ok(())
    }

    /// Whether a type is one of Python's own or of a library. Others may have attributes of any kind.
    fn is_known(&self, kind: &Bound<'py, PyType>) -> PyResult<bool> {
        Ok(kind.is(self.py.get_type::<PyBool>())
            || kind.is(self.py.get_type::<PyInt>())
            || kind.is(self.py.get_type::<PyFloat>())
            || kind.is(self.py.get_type::<PyString>())
            || kind.is(self.py.get_type::<PyTuple>())
            || kind.is(self.py.get_type::<PyList>())
            || self.is_fixed(kind.as_any())?)
    }

    /// Whether the class of a member of an enumeration has nothing but members.
    fn has_members_alone(&self, kind: &Bound<'py, PyType>) -> PyResult<bool> {
        let members = kind.getattr(intern!(self.py, "__members__"))?;
        let own: Vec<String> =
            kind.getattr(intern!(self.py, "__dict__"))?.try_iter()?.map(|name| name?.extract()).collect::<PyResult<_>>()?;
        for name in own.iter().filter(|name| !name.starts_with('_')) {
            if !members.contains(name)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a member of an enumeration has no attributes but those that Python gives it.
    fn is_member_alone(&self, x: &Bound<'py, PyAny>) -> PyResult<bool> {
        const OF_PYTHON: [&str; 4] = ["_value_", "_name_", "__objclass__", "_sort_order_"];
        let own = x.getattr(intern!(self.py, "__dict__"))?;
        let own = own.cast::<PyDict>().map_err(PyErr::from)?;
        Ok(own.keys().iter().all(|name| OF_PYTHON.iter().any(|known| name.eq(*known).unwrap_or(false))))
    }

    /// Whether something always does the same: modules, classes and functions of libraries.
    fn is_fixed(&self, x: &Bound<'py, PyAny>) -> PyResult<bool> {
        let py = self.py;
        let (module, own) = (intern!(py, "__module__"), intern!(py, "__self__"));
        let of_module = |x: &Bound<'py, PyAny>| x.is_instance(self.types().module.bind(py));
        if of_module(x)? {
            return self.is_of_library(&x.getattr(intern!(py, "__name__"))?);
        }
        if let Ok(kind) = x.cast::<PyType>() {
            return self.is_class_of_library(kind);
        }
        if !x.is_instance(self.types().builtin.bind(py))? {
            return Ok(false);
        }
        let of = x.getattr(own)?;
        if of_module(&of)? {
            return self.is_of_library(&of.getattr(intern!(py, "__name__"))?);
        }
        match of.is_none() || of.is_instance_of::<PyType>() {
            true => self.is_of_library(&if of.is_none() { x } else { &of }.getattr(module)?),
            false => Ok(false),
        }
    }

    /// Whether a class is one that its library has by its name: others may say so too.
    fn is_class_of_library(&self, kind: &Bound<'py, PyType>) -> PyResult<bool> {
        let module = kind.getattr(intern!(self.py, "__module__"))?;
        if !self.is_of_library(&module)? {
            return Ok(false);
        }
        let modules = self.py.import(intern!(self.py, "sys"))?.getattr(intern!(self.py, "modules"))?;
        let mut found = modules.cast::<PyDict>()?.get_item(module)?;
        let name = kind.qualname()?;
        for part in name.to_string_lossy().split('.') {
            found = match found {
                Some(scope) => scope.getattr_opt(part)?,
                None => None,
            };
        }
        Ok(found.is_some_and(|found| found.is(kind)))
    }

    fn is_of_library(&self, name: &Bound<'py, PyAny>) -> PyResult<bool> {
        let Ok(name) = name.cast::<PyString>() else { return Ok(false) };
        let name = name.to_string_lossy();
        let first = name.split('.').next().unwrap_or_default();
        Ok(self.types().libraries.iter().any(|library| library == first))
    }
}

impl Token {
    fn is(&self, other: &Self, py: Python<'_>) -> bool {
        use Token::*;
        let equal = |a: &Py<PyAny>, b: &Py<PyAny>| a.is(b) || a.bind(py).eq(b).unwrap_or(false);
        match (self, other) {
            (Nothing, Nothing) | (Missing, Missing) => true,
            (Again(a), Again(b)) => a == b,
            (Parts(None, a), Parts(None, b)) => a == b,
            (Parts(Some(kind), a), Parts(Some(other), b)) => kind.is(other) && a == b,
            (Object(a), Object(b)) => a.is(b),
            (Integer(kind, a), Integer(other, b)) => kind.is(other) && a == b,
            (Float(kind, a), Float(other, b)) => kind.is(other) && a == b,
            (Value(kind, a), Value(other, b)) => kind.is(other) && equal(a, b),
            (Tensor(a), Tensor(b)) => a == b,
            (Typed(dtype, shape), Typed(other, extents)) => dtype.is(other) && equal(shape, extents),
            _ => false,
        }
    }

    /// Adds it to a hash, but for what Python compares.
    fn add_to(&self, hash: &mut impl Hasher) {
        std::mem::discriminant(self).hash(hash);
        match self {
            Token::Nothing | Token::Missing | Token::Value(..) | Token::Typed(..) => {}
            Token::Again(n) | Token::Parts(_, n) | Token::Tensor(n) => n.hash(hash),
            Token::Object(x) => x.as_ptr().hash(hash),
            Token::Integer(_, x) => x.hash(hash),
            Token::Float(_, x) => x.hash(hash),
        }
    }
}

impl Held<'_> {
    /// The key, if there is one.
    pub fn key(&mut self) -> Option<HeldKey> {
        let tokens = self.tokens.take()?;
        let forms: Arc<[_]> = self.forms().map(|form| form.copied()).collect();
        let mut hash = DefaultHasher::new();
        tokens.iter().for_each(|token| token.add_to(&mut hash));
        forms.iter().for_each(|form| form.map(|form| (form.elem, form.shape().to_vec())).hash(&mut hash));
        Some(HeldKey { tokens: tokens.into_vec().into(), forms, hash: hash.finish() })
    }

    /// Whether a key is theirs.
    pub fn has(&self, key: &HeldKey, py: Python<'_>) -> bool {
        self.tokens.as_ref().is_some_and(|tokens| same(&key.tokens, tokens, py) && same_forms(key.forms(), self.forms()))
    }

    fn forms(&self) -> impl ExactSizeIterator<Item = Option<&TensorForm>> {
        self.tensors.iter().map(|(_, seen)| seen.as_ref().map(|seen| &seen.form))
    }
}

fn same(some: &[Token], others: &[Token], py: Python<'_>) -> bool {
    some.len() == others.len() && some.iter().zip(others).all(|(a, b)| a.is(b, py))
}

/// Whether tensors have the same types and shapes.
fn same_forms<'a>(
    some: impl ExactSizeIterator<Item = Option<&'a TensorForm>>,
    others: impl ExactSizeIterator<Item = Option<&'a TensorForm>>,
) -> bool {
    let is_same = |pair: (Option<&TensorForm>, Option<&TensorForm>)| match pair {
        (None, None) => true,
        (Some(form), Some(other)) => form.elem == other.elem && form.shape() == other.shape(),
        _ => false,
    };
    some.len() == others.len() && some.zip(others).all(is_same)
}

impl HeldKey {
    /// Whether it is another one.
    pub fn is(&self, other: &Self, py: Python<'_>) -> bool {
        self.hash == other.hash && same(&self.tokens, &other.tokens, py) && same_forms(self.forms(), other.forms())
    }

    fn forms(&self) -> impl ExactSizeIterator<Item = Option<&TensorForm>> {
        self.forms.iter().map(Option::as_ref)
    }
}

impl PartialEq for HeldKey {
    fn eq(&self, other: &Self) -> bool {
        Python::attach(|py| self.is(other, py))
    }
}

impl Eq for HeldKey {}

impl Hash for HeldKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

#[pymethods]
impl HeldKey {
    fn __hash__(&self) -> u64 {
        self.hash
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| self.is(other.get(), other.py()))
    }
}
