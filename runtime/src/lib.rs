//! flashtile.
