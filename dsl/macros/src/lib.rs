//! `flash_kernel!`.
