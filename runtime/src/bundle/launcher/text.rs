//! Names, strings and bytes as C has them.

use std::fmt::Write as _;

use flashtile_codegen::Arch;

/// Name of the array that holds a file.
pub(super) fn symbol(file: &str) -> String {
    let name: String = file.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("flashtile_{name}")
}

/// Bytes as an array of words, which compiles faster than one of bytes.
pub(super) fn embed(out: &mut String, symbol: &str, bytes: &[u8]) {
    let words = bytes.len().div_ceil(8);
    let _ = writeln!(out, "extern const unsigned long long {symbol}[{words}];\nconst unsigned long long {symbol}[{words}] = {{");
    for line in bytes.chunks(64) {
        for word in line.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            let _ = write!(out, "{:#x},", u64::from_le_bytes(padded));
        }
        out.push('\n');
    }
    out.push_str("};\n");
}

/// Major and minor compute capability, and whether code runs on that only.
pub(super) fn capability(arch: &str) -> (u32, u32, bool) {
    let arch = Arch::named(arch).expect("a bundle is made for architectures of the table");
    (arch.capability.0, arch.capability.1, arch.name.ends_with('a'))
}

/// A C string of a text.
pub(super) fn quoted(text: &str) -> String {
    let mut out = "\"".to_owned();
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => out.push('?'),
        }
    }
    out + "\""
}
