//! What surrounds every entry: magic, version, kind, length and hash, so that a reader can tell a whole entry of this
//! version from anything else. Bytes in, bytes out. The hash finds damage; it is no signature, and against a person who writes an
//! entry and its hash only the permissions of the directory help.

use crate::private::Distrust;

/// First bytes of every file of the cache.
const MAGIC: &[u8; 16] = b"flashtile-cache\n";
/// Version of the envelope and of what is in it; raised when either changes, with the suffix of files.
pub(super) const VERSION: u32 = 4;
const HASH_AT: usize = 32;
const PAYLOAD_AT: usize = 64;

/// What an entry holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Result and evidence of tuning.
    Tuning,
    /// Compiled code.
    Module,
}

impl Kind {
    pub const ALL: [Kind; 2] = [Kind::Tuning, Kind::Module];

    fn code(self) -> u32 {
        match self {
            Kind::Tuning => 1,
            Kind::Module => 2,
        }
    }

    /// Folder of its files.
    pub fn folder(self) -> &'static str {
        match self {
            Kind::Tuning => "tuning",
            Kind::Module => "modules",
        }
    }
}

/// Why bytes are not an entry.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("it is not an entry of the cache")]
    NotOurs,
    #[error("it is of format version {0}, and this is version {VERSION}")]
    Version(u32),
    #[error("it is {found} bytes long and should be {expected}")]
    Length { found: u64, expected: u64 },
    #[error("its hash does not match its content")]
    Hash,
    #[error("it is of an unknown kind {0}")]
    Kind(u32),
    #[error("its content cannot be read: {0}")]
    Content(String),
    #[error("it holds the entry of another key")]
    Key,
    #[error("{0}")]
    Distrusted(Distrust),
}

/// Puts a payload into an envelope.
pub(super) fn seal(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PAYLOAD_AT + payload.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&kind.code().to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    let hash = hash(&bytes, payload);
    bytes.extend_from_slice(hash.as_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Takes the payload out of an envelope.
pub(super) fn open(bytes: &[u8]) -> Result<(Kind, &[u8]), Fault> {
    if bytes.get(..16) != Some(MAGIC) {
        return Err(Fault::NotOurs);
    }
    let number = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    let short = Fault::Length { found: bytes.len() as u64, expected: PAYLOAD_AT as u64 };
    let version = number(16).ok_or(short.clone())?;
    if version != VERSION {
        return Err(Fault::Version(version));
    }
    let (Some(header), Some(payload)) = (bytes.get(..PAYLOAD_AT), bytes.get(PAYLOAD_AT..)) else { return Err(short) };
    let len = header[24..32].try_into().map(u64::from_le_bytes).expect("eight bytes");
    if len != payload.len() as u64 {
        let (found, expected) = (bytes.len() as u64, len.saturating_add(PAYLOAD_AT as u64));
        return Err(Fault::Length { found, expected });
    }
    if header[HASH_AT..] != *hash(&header[..HASH_AT], payload).as_bytes() {
        return Err(Fault::Hash);
    }
    let code = number(20).expect("the header is whole");
    let kind = Kind::ALL.into_iter().find(|k| k.code() == code).ok_or(Fault::Kind(code))?;
    Ok((kind, payload))
}

fn hash(header: &[u8], payload: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header).update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_payload_opens() {
        for kind in Kind::ALL {
            for payload in [&b""[..], b"content"] {
                assert_eq!(open(&seal(kind, payload)), Ok((kind, payload)));
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let sealed = seal(Kind::Module, b"some content");
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn every_truncation_and_anything_appended_is_noticed() {
        let sealed = seal(Kind::Tuning, b"some content");
        for len in 0..sealed.len() {
            assert!(open(&sealed[..len]).is_err(), "{len} bytes");
        }
        assert_eq!(open(&[&sealed[..], b"x"].concat()), Err(Fault::Length { found: 77, expected: 76 }));
    }

    #[test]
    fn another_version_is_named() {
        let mut other = seal(Kind::Tuning, b"");
        other[16] = 9;
        let fault = open(&other).expect_err("version 9");
        assert_eq!(fault.to_string(), "it is of format version 9, and this is version 4");
        assert_eq!(open(b"something else entirely"), Err(Fault::NotOurs));
    }
}
