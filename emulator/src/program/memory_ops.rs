//! Loads, stores, atomics, copies, barriers and fences.

use super::modifiers::{Modifiers, Type, unknown};
use super::operands::{Decoder, Result};
use super::operation::*;
use crate::memory::Scope;
use crate::syntax::{Class, Instruction, Operand, Register, Space};

/// Modifiers of loads and stores that say where data may be cached.
const HINTS: &[&str] = &[
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "weak",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L2::cache_hint",
];

const SCOPES: &[(&str, Scope)] =
    &[("cta", Scope::Block), ("cluster", Scope::Cluster), ("gpu", Scope::Device), ("sys", Scope::Device)];

impl<'t> Decoder<'_, 't> {
    /// The address in an operand `[..]` of a space.
    pub fn address(&mut self, i: &Instruction<'t>, n: usize, space: Space) -> Result<Address> {
        let operand = self.operand(i, n)?;
        self.address_of(i, operand, space)
    }

    pub fn address_of(&mut self, i: &Instruction<'t>, operand: &Operand<'t>, space: Space) -> Result<Address> {
        let Operand::Address { base, offset, .. } = operand else { return Err(unknown(i, "an address is expected")) };
        let offset = *offset;
        Ok(match &**base {
            Operand::Register(Register { class: Class::Double, index }) => Address { row: *index, wide: true, offset },
            Operand::Register(Register { class: Class::Word, index })
                if matches!(space, Space::Shared | Space::Local | Space::Param) =>
            {
                Address { row: *index, wide: false, offset }
            }
            base @ (Operand::Symbol(_) | Operand::Integer(_)) => Address { row: self.double_of(i, base)?, wide: true, offset },
            _ => return Err(unknown(i, "its address")),
        })
    }

    pub(super) fn memory(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Option<Op>> {
        Ok(Some(match m.name {
            "ld" | "ldu" => Op::Load(Box::new(self.access(i, m, 1, 0, true)?)),
            "st" => Op::Store(Box::new(self.access(i, m, 0, 1, false)?)),
            "atom" => self.atomic(i, m, true)?,
            "red" => self.atomic(i, m, false)?,
            "cp" => self.copy(i, m)?,
            "mbarrier" => self.barrier_object(i, m)?,
            "bar" | "barrier" => self.barrier(i, m)?,
            "mapa" => {
                self.count(i, &[3])?;
                let generic = !m.take("shared::cluster");
                let wide = m.one_type()?.bytes() == 8;
                let rank = self.word(i, 2)?;
                if wide {
                    Op::MapAddress { d: self.to_double(i, 0)?, a: self.double(i, 1)?, rank, wide, generic }
                } else if generic {
                    return Err(unknown(i, "a generic address has 64 bits"));
                } else {
                    Op::MapAddress { d: self.to_word(i, 0)?, a: self.word(i, 1)?, rank, wide, generic }
                }
            }
            "getctarank" => {
                self.count(i, &[2])?;
                m.ignore(&["shared::cluster"]);
                let wide = m.one_type()?.bytes() == 8;
                let a = if wide { self.double(i, 1)? } else { self.word(i, 1)? };
                Op::RankOf { d: self.to_word(i, 0)?, a, wide }
            }
            "membar" => {
                let scopes = [("cta", Scope::Block), ("gl", Scope::Device), ("sys", Scope::Device)];
                Op::Fence { scope: m.any(&scopes).ok_or_else(|| unknown(i, "its scope"))? }
            }
            "fence" => {
                if m.take("proxy") {
                    let global = m.take("global");
                    let shared = m.take("shared::cta") | m.take("shared::cluster");
                    if m.take("async") {
                        // Without a state space it is of both.
                        Op::FenceProxyAsync { shared: shared || !global, global: global || !shared }
                    } else {
                        return Err(unknown(i, "the proxy"));
                    }
                } else if m.take("mbarrier_init") {
                    m.ignore(&["release", "cluster"]);
                    Op::FenceProxyAsync { shared: true, global: false }
                } else {
                    m.ignore(&["sc", "acq_rel", "acquire", "release"]);
                    Op::Fence { scope: m.any(SCOPES).ok_or_else(|| unknown(i, "its scope"))? }
                }
            }
            _ => return Ok(None),
        }))
    }

    fn access(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>, address: usize, data: usize, load: bool) -> Result<Access> {
        self.count(i, &[2])?;
        let order = self.memory_order(i, m, load)?;
        m.ignore(HINTS);
        let space = m.space();
        let lanes = m.any(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
        let of = m.one_type()?;
        if of == Type::Predicate {
            return Err(unknown(i, "predicates in memory"));
        }
        let address = self.address(i, address, space)?;
        let operand = self.operand(i, data)?;
        let parts = match operand {
            Operand::Vector(parts) if lanes > 1 => &parts[..],
            single if lanes == 1 => std::slice::from_ref(single),
            _ => return Err(unknown(i, "a vector is expected")),
        };
        if parts.len() != lanes {
            return Err(unknown(i, "the length of its vector"));
        }
        let wide = of.bytes() == 8 || parts.iter().any(|p| matches!(p, Operand::Register(Register { class: Class::Double, .. })));
        let mut rows = Vec::with_capacity(lanes);
        for part in parts {
            rows.push(match part {
                Operand::Sink if load => u32::MAX,
                Operand::Register(r) if wide == (r.class == Class::Double) && r.class != Class::Predicate => r.index,
                Operand::Register(_) => return Err(unknown(i, "registers of several widths")),
                part if !load && wide => self.double_of(i, part)?,
                part if !load => self.word_of(i, part)?,
                _ => return Err(unknown(i, "its destination")),
            });
        }
        let bytes = u32::from(of.bytes()) * lanes as u32;
        if bytes > 32 || !bytes.is_power_of_two() {
            return Err(unknown(i, "the width of its access"));
        }
        Ok(Access { space, address, element: of.bytes(), signed: of.is_signed(), rows: rows.into(), wide, order })
    }

    /// The order and scope of a load or store.
    fn memory_order(&self, i: &Instruction<'t>, m: &Modifiers<'_, 't>, load: bool) -> Result<MemoryOrder> {
        let scope = m.any(SCOPES);
        if m.take("volatile") {
            return Ok(MemoryOrder { scope: Some(Scope::Device), ..MemoryOrder::default() });
        }
        let acquires = load && m.take("acquire");
        let releases = !load && m.take("release");
        if !(acquires || releases || m.take("relaxed")) {
            return if scope.is_none() { Ok(MemoryOrder::default()) } else { Err(unknown(i, "a scope of a weak access")) };
        }
        if scope.is_none() {
            return Err(unknown(i, "a strong access without a scope"));
        }
        Ok(MemoryOrder { scope, acquires, releases })
    }

    fn atomic(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>, returns: bool) -> Result<Op> {
        // Without a scope it is of the GPU, and without an order it is relaxed (PTX ISA, "atom").
        let scope = Some(m.any(SCOPES).unwrap_or(Scope::Device));
        let both = m.take("acq_rel");
        let order = MemoryOrder { scope, acquires: m.take("acquire") || both, releases: m.take("release") || both };
        m.ignore(&["relaxed"]);
        m.ignore(HINTS);
        let space = m.space();
        let elements = m.any(&[("v2", 2), ("v4", 4)]).unwrap_or(1);
        let of = m.one_type()?;
        let wide = of.bytes() == 8;
        let table = [
            ("add", (Atomic::Add, Atomic::Add)),
            ("min", (Atomic::MinUnsigned, Atomic::MinSigned)),
            ("max", (Atomic::MaxUnsigned, Atomic::MaxSigned)),
            ("and", (Atomic::And, Atomic::And)),
            ("or", (Atomic::Or, Atomic::Or)),
            ("xor", (Atomic::Xor, Atomic::Xor)),
            ("exch", (Atomic::Exchange, Atomic::Exchange)),
            ("cas", (Atomic::CompareSwap, Atomic::CompareSwap)),
            ("inc", (Atomic::Increment, Atomic::Increment)),
            ("dec", (Atomic::Decrement, Atomic::Decrement)),
        ];
        let (unsigned, signed) = m.any(&table).ok_or_else(|| unknown(i, "the operation"))?;
        let op = match of {
            Type::F32 if unsigned == Atomic::Add => Atomic::FloatAdd,
            Type::Signed(4 | 8) => signed,
            Type::Bits(4 | 8) | Type::Unsigned(4 | 8) => unsigned,
            _ => return Err(unknown(i, "this type")),
        };
        let first = usize::from(returns);
        let address = self.address(i, first, space)?;
        let value = |s: &mut Self, n| if wide { s.double(i, n) } else { s.word(i, n) };
        if elements > 1 {
            let Operand::Vector(parts) = self.operand(i, first + 1)? else { return Err(unknown(i, "a vector is expected")) };
            if returns || op != Atomic::FloatAdd || space != Space::Global || parts.len() != elements {
                return Err(unknown(i, "vectors are of f32, and added to global memory"));
            }
            let rows = parts.iter().map(|part| self.word_of(i, part)).collect::<Result<Box<[u32]>>>()?;
            return Ok(Op::AddVector { order, address, rows });
        }
        let a = value(self, first + 1)?;
        let b = if op == Atomic::CompareSwap { value(self, first + 2)? } else { a };
        let d = match i.operands.first() {
            Some(Operand::Sink) => None,
            _ if !returns => None,
            _ => Some(if wide { self.to_double(i, 0)? } else { self.to_word(i, 0)? }),
        };
        Ok(Op::Atomic { op, space, wide, order, d, address, a, b })
    }

    fn copy(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        let adds = m.take("reduce");
        if !m.take("async") {
            return Err(unknown(i, ""));
        }
        if adds {
            return self.bulk_add(i, m);
        }
        if m.take("bulk") {
            return self.bulk(i, m);
        }
        if m.take("commit_group") {
            return Ok(Op::CommitCopies);
        }
        if m.take("wait_group") {
            return Ok(Op::WaitCopies { pending: Some(self.immediate(i, 0)? as u32) });
        }
        if m.take("wait_all") {
            return Ok(Op::WaitCopies { pending: None });
        }
        m.ignore(HINTS);
        if !(m.take("shared") || m.take("shared::cta")) || !m.take("global") {
            return Err(unknown(i, "only from global to shared memory"));
        }
        let (to, from) = (self.address(i, 0, Space::Shared)?, self.address(i, 1, Space::Global)?);
        let bytes = self.immediate(i, 2)?;
        if !matches!(bytes, 4 | 8 | 16) {
            return Err(unknown(i, "the size of the copy"));
        }
        let present = match i.operands.get(3) {
            None => None,
            Some(operand) => Some(self.word_of(i, operand)?),
        };
        Ok(Op::CopyAsync { to, from, bytes: bytes as u8, present })
    }

    fn bulk(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        if m.take("commit_group") {
            return Ok(Op::CommitBulk);
        }
        if m.take("wait_group") {
            return Ok(Op::WaitBulk { pending: self.immediate(i, 0)? as u32, read: m.take("read") });
        }
        let rank = m.any(&[("1d", 1), ("2d", 2), ("3d", 3), ("4d", 4), ("5d", 5)]);
        let tensor = m.take("tensor");
        m.ignore(&["tile"]);
        if m.take("mbarrier::complete_tx::bytes") {
            if !m.take("global") || !(m.take("shared::cluster") || m.take("shared::cta")) {
                return Err(unknown(i, "its state spaces"));
            }
            let shared = self.address(i, 0, Space::Shared)?;
            return match (tensor, rank) {
                (true, Some(rank)) => {
                    self.count(i, &[3])?;
                    let barrier = Some(self.address(i, 2, Space::Shared)?);
                    let (map, coordinates) = self.tensor_address(i, 1, rank)?;
                    Ok(Op::TensorLoad(Box::new(TensorCopy { map, coordinates, shared, barrier })))
                }
                (false, None) => {
                    self.count(i, &[4])?;
                    let (global, bytes) = (self.address(i, 1, Space::Global)?, self.word(i, 2)?);
                    let barrier = Some(self.address(i, 3, Space::Shared)?);
                    Ok(Op::BulkCopy { shared, global, bytes, barrier, adds: false })
                }
                _ => Err(unknown(i, "")),
            };
        }
        if m.take("bulk_group") && m.take("global") && m.take("shared::cta") {
            return match (tensor, rank) {
                (true, Some(rank)) => {
                    self.count(i, &[2])?;
                    let shared = self.address(i, 1, Space::Shared)?;
                    let (map, coordinates) = self.tensor_address(i, 0, rank)?;
                    let copy = Box::new(TensorCopy { map, coordinates, shared, barrier: None });
                    Ok(Op::TensorStore { copy, adds: false })
                }
                (false, None) => {
                    self.count(i, &[3])?;
                    let (global, shared, bytes) =
                        (self.address(i, 0, Space::Global)?, self.address(i, 1, Space::Shared)?, self.word(i, 2)?);
                    Ok(Op::BulkCopy { shared, global, bytes, barrier: None, adds: false })
                }
                _ => Err(unknown(i, "")),
            };
        }
        Err(unknown(i, ""))
    }

    /// `cp.reduce.async.bulk` to global memory, of which sums of f32 are known. Of a box of a tensor
    /// the map says what its elements are.
    fn bulk_add(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        let known = m.take("bulk") && m.take("global") && m.take("shared::cta") && m.take("bulk_group");
        let rank = m.any(&[("1d", 1), ("2d", 2), ("3d", 3), ("4d", 4), ("5d", 5)]);
        let tensor = m.take("tensor");
        if !known || !m.take("add") || tensor != rank.is_some() || (!tensor && m.one_type()? != Type::F32) {
            return Err(unknown(i, "only sums of f32 from shared to global memory"));
        }
        if let Some(rank) = rank {
            m.ignore(&["tile"]);
            self.count(i, &[2])?;
            let (map, coordinates) = self.tensor_address(i, 0, rank)?;
            let copy = TensorCopy { map, coordinates, shared: self.address(i, 1, Space::Shared)?, barrier: None };
            return Ok(Op::TensorStore { copy: Box::new(copy), adds: true });
        }
        self.count(i, &[3])?;
        let (global, shared) = (self.address(i, 0, Space::Global)?, self.address(i, 1, Space::Shared)?);
        Ok(Op::BulkCopy { shared, global, bytes: self.word(i, 2)?, barrier: None, adds: true })
    }

    fn tensor_address(&mut self, i: &Instruction<'t>, n: usize, rank: usize) -> Result<(Address, Box<[u32]>)> {
        let operand = self.operand(i, n)?;
        let map = self.address_of(i, operand, Space::Generic)?;
        let Operand::Address { coordinates, .. } = operand else { return Err(unknown(i, "a tensor address is expected")) };
        if coordinates.len() != rank {
            return Err(unknown(i, "the number of coordinates"));
        }
        let rows: Result<Vec<u32>> = coordinates.iter().map(|c| self.word_of(i, c)).collect();
        Ok((map, rows?.into()))
    }

    fn barrier_object(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        let spaces: Vec<bool> = ["shared", "shared::cta"].iter().map(|s| m.take(s)).collect();
        if !spaces.contains(&true) {
            return Err(unknown(i, "only in shared::cta"));
        }
        if !m.take("b64") {
            return Err(unknown(i, "a type .b64 is expected"));
        }
        let target = |d: &mut Self, n| d.address(i, n, Space::Shared);
        if m.take("init") {
            return Ok(Op::BarrierInit { address: target(self, 0)?, count: self.word(i, 1)? });
        }
        if m.take("inval") {
            return Ok(Op::BarrierInvalidate { address: target(self, 0)? });
        }
        if m.take("expect_tx") && !m.take("arrive") {
            m.ignore(&["relaxed", "cta"]);
            return Ok(Op::BarrierExpect { address: target(self, 0)?, transactions: self.word(i, 1)? });
        }
        let waits = [("try_wait", true), ("test_wait", false)];
        if let Some(suspend) = m.any(&waits) {
            m.ignore(&["acquire", "cta"]);
            let dp = self.to_predicate(i, 0)?;
            let address = target(self, 1)?;
            return Ok(if m.take("parity") {
                Op::BarrierTest { dp, address, parity: Some(self.word(i, 2)?), state: 0, suspend }
            } else {
                Op::BarrierTest { dp, address, parity: None, state: self.double(i, 2)?, suspend }
            });
        }
        // `expect_tx` of an arrive was taken above, where it left `arrive` alone only if it is not there.
        let transactions = i.opcode.contains("arrive.expect_tx");
        m.ignore(&["arrive"]);
        let drop = if m.take("arrive_drop") {
            true
        } else if i.opcode.contains(".arrive") {
            false
        } else {
            return Err(unknown(i, ""));
        };
        m.ignore(&["release", "cta", "expect_tx"]);
        if m.take("noComplete") {
            return Err(unknown(i, "modifier `.noComplete`"));
        }
        let (state, first) = match i.operands.first() {
            Some(Operand::Sink) => (None, 1),
            Some(Operand::Register(Register { class: Class::Double, index })) => (Some(*index), 1),
            _ => (None, 0),
        };
        let address = target(self, first)?;
        let last = match i.operands.get(first + 1) {
            None => None,
            Some(operand) => Some(self.word_of(i, operand)?),
        };
        Ok(match (transactions, last) {
            (true, None) => return Err(unknown(i, "its transaction count")),
            (true, bytes) => Op::BarrierArrive { address, count: None, transactions: bytes, drop, state },
            (false, count) => Op::BarrierArrive { address, count, transactions: None, drop, state },
        })
    }

    fn barrier(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        if m.take("warp") {
            m.ignore(&["sync"]);
            return Ok(Op::WarpBarrier { members: self.word(i, 0)? });
        }
        if m.take("cluster") {
            self.count(i, &[0])?;
            let aligned = m.take("aligned");
            return Ok(if m.take("arrive") {
                let relaxed = m.take("relaxed");
                m.ignore(&["release"]);
                Op::ClusterArrive { release: !relaxed, aligned }
            } else if m.take("wait") {
                m.ignore(&["acquire"]);
                Op::ClusterWait { aligned }
            } else {
                return Err(unknown(i, ""));
            });
        }
        m.ignore(&["cta"]);
        let aligned = m.name == "bar" || m.take("aligned");
        m.ignore(&["aligned"]);
        if m.take("red") {
            return self.barrier_votes(i, m, aligned);
        }
        let wait = if m.take("sync") {
            true
        } else if m.take("arrive") {
            false
        } else {
            return Err(unknown(i, ""));
        };
        self.count(i, if wait { &[1, 2] } else { &[2] })?;
        let id = self.word(i, 0)?;
        let threads = match i.operands.get(1) {
            None => None,
            Some(operand) => Some(self.word_of(i, operand)?),
        };
        Ok(Op::Barrier { id, threads, wait, aligned, votes: None })
    }

    /// `bar.red.and.pred` and `.or.pred`.
    fn barrier_votes(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>, aligned: bool) -> Result<Op> {
        self.count(i, &[3, 4])?;
        let all = m.any(&[("and", true), ("or", false)]).ok_or_else(|| unknown(i, "the operation"))?;
        m.ignore(&["pred"]);
        let last = i.operands.len() - 1;
        let (p, negate) = match self.operand(i, last)? {
            Operand::Not(Register { class: Class::Predicate, index }) => (*index, true),
            operand => (self.predicate_of(i, operand)?, false),
        };
        let votes = BarrierVotes { d: self.to_predicate(i, 0)?, p, negate, all };
        let id = self.word(i, 1)?;
        let threads = if last == 3 { Some(self.word(i, 2)?) } else { None };
        Ok(Op::Barrier { id, threads, wait: true, aligned, votes: Some(votes) })
    }
}
