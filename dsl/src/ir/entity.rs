//! Entity references: `u32` newtypes whose `Display` is their text form, and the arena they index.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

/// A reference into an [`Arena`].
pub trait Entity: Copy + Eq {
    /// The reference to element `index`.
    fn from_index(index: usize) -> Self;
    /// The index of the element referred to.
    fn index(self) -> usize;
}

macro_rules! entity {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u32);

        impl Entity for $name {
            fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("fewer than 2^32 entities"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

entity!(
    /// A value in SSA form: the result of an op or a block parameter.
    ValueId, "%"
);
entity!(
    /// An operation.
    OpId, "op"
);
entity!(
    /// A list of ops with parameters: the body of the kernel or of a loop.
    #[derive(Default)]
    BlockId, "block"
);
entity!(
    /// A tile axis. The order of ids is the order of definition in the kernel text.
    AxisId, "axis"
);
entity!(
    /// A named size: a run-time extent such as `N` or a const generic such as `D`.
    SizeId, "size"
);
entity!(
    /// A kernel parameter: a tensor or a scalar.
    ParamId, "param"
);

/// A growable list of `V` indexed by the entity `K`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arena<K, V> {
    items: Vec<V>,
    key: PhantomData<K>,
}

impl<K, V> Default for Arena<K, V> {
    fn default() -> Self {
        Self { items: Vec::new(), key: PhantomData }
    }
}

impl<K: Entity, V> Arena<K, V> {
    /// Appends `value` and returns its reference.
    pub fn push(&mut self, value: V) -> K {
        self.items.push(value);
        K::from_index(self.items.len() - 1)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The element, or `None` if `key` is out of range.
    pub fn get(&self, key: K) -> Option<&V> {
        self.items.get(key.index())
    }

    /// All references, in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K, V> {
        (0..self.items.len()).map(K::from_index)
    }

    /// All references with their elements, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(i, v)| (K::from_index(i), v))
    }

    /// All elements, in order.
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.items.iter()
    }

    /// The values in order, to change.
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, V> {
        self.items.iter_mut()
    }
}

impl<K: Entity, V> Index<K> for Arena<K, V> {
    type Output = V;
    fn index(&self, key: K) -> &V {
        &self.items[key.index()]
    }
}

impl<K: Entity, V> IndexMut<K> for Arena<K, V> {
    fn index_mut(&mut self, key: K) -> &mut V {
        &mut self.items[key.index()]
    }
}
