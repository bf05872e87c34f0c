//! CUDA C templates and their typed contexts.
