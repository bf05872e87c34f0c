//! The content of entries as bytes: JSON, and for compiled code JSON followed by the machine code and the PTX.

use serde::{Deserialize, Serialize};

use super::envelope::{self, Fault, Kind};
use super::key::ModuleKey;
use super::record::{ModuleRecord, TuningRecord};
use crate::toolchain::PtxasReport;

/// All of a module record but its code.
#[derive(Serialize, Deserialize)]
struct ModuleHeader {
    key: ModuleKey,
    nvrtc: (u32, u32),
    report: PtxasReport,
    cubin_bytes: u64,
    ptx_bytes: u64,
}

/// A record that can be an entry.
pub(super) trait Content: Sized {
    const KIND: Kind;
    fn to_payload(&self) -> Vec<u8>;
    fn from_payload(payload: &[u8]) -> Result<Self, Fault>;
    /// Name of its file, from its key.
    fn file_stem(&self) -> String;

    fn seal(&self) -> Vec<u8> {
        envelope::seal(Self::KIND, &self.to_payload())
    }

    fn unseal(bytes: &[u8]) -> Result<Self, Fault> {
        match envelope::open(bytes)? {
            (kind, payload) if kind == Self::KIND => Self::from_payload(payload),
            _ => Err(Fault::Key),
        }
    }
}

impl Content for TuningRecord {
    const KIND: Kind = Kind::Tuning;

    fn to_payload(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("records have string keys")
    }

    fn from_payload(payload: &[u8]) -> Result<Self, Fault> {
        let record: Self = serde_json::from_slice(payload).map_err(|e| Fault::Content(e.to_string()))?;
        match record.winner {
            Some(winner) if winner >= record.candidates.len() => Err(Fault::Content("the winner is no candidate".to_owned())),
            _ => Ok(record),
        }
    }

    fn file_stem(&self) -> String {
        self.key.file_stem()
    }
}

impl Content for ModuleRecord {
    const KIND: Kind = Kind::Module;

    fn to_payload(&self) -> Vec<u8> {
        let header = ModuleHeader {
            key: self.key.clone(),
            nvrtc: self.nvrtc,
            report: self.report.clone(),
            cubin_bytes: self.cubin.len() as u64,
            ptx_bytes: self.ptx.len() as u64,
        };
        let header = serde_json::to_vec(&header).expect("headers have string keys");
        let mut payload = Vec::with_capacity(8 + header.len() + self.cubin.len() + self.ptx.len());
        payload.extend_from_slice(&(header.len() as u64).to_le_bytes());
        payload.extend_from_slice(&header);
        payload.extend_from_slice(&self.cubin);
        payload.extend_from_slice(self.ptx.as_bytes());
        payload
    }

    fn from_payload(payload: &[u8]) -> Result<Self, Fault> {
        let fault = |reason: &str| Fault::Content(reason.to_owned());
        let (len, rest) = payload.split_first_chunk().ok_or(fault("it is too short"))?;
        let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| fault("a length is too large"))?;
        let (header, rest) = rest.split_at_checked(len).ok_or(fault("a length is too large"))?;
        let header: ModuleHeader = serde_json::from_slice(header).map_err(|e| fault(&e.to_string()))?;
        let cubin_bytes = usize::try_from(header.cubin_bytes).map_err(|_| fault("a length is too large"))?;
        let (cubin, ptx) = rest.split_at_checked(cubin_bytes).ok_or(fault("a length is too large"))?;
        if ptx.len() as u64 != header.ptx_bytes {
            return Err(fault("lengths do not add up"));
        }
        let ptx = std::str::from_utf8(ptx).map_err(|e| fault(&e.to_string()))?.to_owned();
        Ok(Self { key: header.key, nvrtc: header.nvrtc, report: header.report, cubin: cubin.to_vec(), ptx })
    }

    fn file_stem(&self) -> String {
        self.key.file_stem()
    }
}

/// Reads an entry of either kind and says what it is, or what is wrong with it. Any bytes are allowed.
pub fn decode_entry(bytes: &[u8]) -> Result<String, String> {
    describe(bytes).map(|(_, _, description)| description).map_err(|fault| fault.to_string())
}

/// The bytes in a right envelope of every kind, whatever they are. For tests of the reader.
#[doc(hidden)]
pub fn seal_as_every_kind(payload: &[u8]) -> Vec<Vec<u8>> {
    Kind::ALL.into_iter().map(|kind| envelope::seal(kind, payload)).collect()
}

/// Kind, file stem and description of an entry.
pub(super) fn describe(bytes: &[u8]) -> Result<(Kind, String, String), Fault> {
    match envelope::open(bytes)? {
        (kind @ Kind::Tuning, payload) => {
            let record = TuningRecord::from_payload(payload)?;
            let sizes: Vec<_> = record.sizes.iter().map(|(name, size)| format!("{name}={size}")).collect();
            let types: Vec<_> = record.key.binding.types.values().map(|t| t.name()).collect();
            let winner = match record.winning() {
                None => "no winner yet".to_owned(),
                Some(w) => match &w.measured {
                    Some(m) => format!("{:.4} ms with {}", m.median * 1e3, w.schedule),
                    None => format!("{:.4} ms predicted with {}", w.predicted * 1e3, w.schedule),
                },
            };
            let description = format!(
                "{} {} {} on {} ({}): {} candidates, {winner}",
                record.key.kernel,
                types.join(","),
                sizes.join(","),
                record.key.device.name,
                record.key.arch,
                record.candidates.len()
            );
            Ok((kind, record.file_stem(), description))
        }
        (kind @ Kind::Module, payload) => {
            let record = ModuleRecord::from_payload(payload)?;
            let description = format!(
                "code for {} by NVRTC {}.{}: {} registers, {} bytes",
                record.key.arch,
                record.nvrtc.0,
                record.nvrtc.1,
                record.report.registers,
                record.cubin.len()
            );
            Ok((kind, record.file_stem(), description))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_that_no_writer_made_is_a_fault_and_no_panic() {
        let header = br#"{"key":{"source_hash":"","arch":""},"nvrtc":[13,0],"report":{"registers":0,"spill_stores":0,"spill_loads":0,"stack":0,"shared":0,"entries":{},"remarks":[]},"cubin_bytes":18446744073709551615,"ptx_bytes":0}"#;
        let long = [&(header.len() as u64).to_le_bytes()[..], header].concat();
        for payload in [&b""[..], b"{}", b"null", &[0xff; 8], &[0xff; 64], &[0; 8], &long] {
            for sealed in seal_as_every_kind(payload) {
                let fault = decode_entry(&sealed).expect_err("no content");
                assert!(fault.starts_with("its content cannot be read: "), "{fault}");
            }
        }
    }
}
