//! Statements of programs that meet: turns by a semaphore, states, barriers of a cluster.

use flashtile_templates::{AwaitPart, ClusterBarrier, PassPart, State, StateRun, Wrapper};

use super::writer::Writer;
use crate::error::Error;
use crate::names;
use crate::plan::{Expr, MeetBy, Meeting, Shape, Storage, VarId, Voters};

/// The named barrier of the threads that compute, where others do not: those of turns are numbered
/// from 1.
const BARRIER: u32 = 15;

impl Writer<'_> {
    fn meeting(&self) -> &Meeting {
        self.e.plan.meeting.as_ref().expect("verified: programs meet")
    }

    /// Address of the semaphore: one for all programs that differ in their part only.
    fn semaphore(&mut self) -> String {
        self.wrappers.insert(Wrapper::Semaphore);
        let group = self.meeting().group.clone();
        let group = self.uniform(&group);
        format!("params.workspace + {group}")
    }

    pub(super) fn barrier_of_computing(&mut self) -> String {
        if !self.e.plan.is_specialized() {
            return "__syncthreads()".into();
        }
        self.wrappers.insert(Wrapper::NamedBarrier);
        format!("barrier_sync({BARRIER}, {})", self.e.plan.computing_threads())
    }

    /// Whether what `moves` says holds in some lane of the voters.
    pub(super) fn any_of(&mut self, voters: Voters) -> String {
        match voters {
            Voters::Warp => "__any_sync(0xffffffffu, moves)".into(),
            Voters::Role if !self.e.plan.is_specialized() => "__syncthreads_or(moves)".into(),
            Voters::Role => {
                self.wrappers.insert(Wrapper::BarrierVote);
                format!("barrier_any({BARRIER}, {}, moves)", self.e.plan.computing_threads())
            }
        }
    }

    pub(super) fn await_part(&mut self) -> Result<String, Error> {
        let (semaphore, barrier, part) = (self.semaphore(), self.barrier_of_computing(), self.meeting().part.clone());
        self.render(&AwaitPart { semaphore, part, barrier })
    }

    pub(super) fn pass_part(&mut self) -> Result<String, Error> {
        let (semaphore, barrier) = (self.semaphore(), self.barrier_of_computing());
        let (part, parts) = (self.meeting().part.clone(), self.meeting().parts);
        self.render(&PassPart { semaphore, part, parts, barrier })
    }

    pub(super) fn cluster_barrier(&mut self) -> Result<String, Error> {
        self.wrappers.insert(Wrapper::Cluster);
        self.render(&ClusterBarrier {})
    }

    pub(super) fn save_state(&mut self, from: &[VarId]) -> Result<String, Error> {
        let base = format!("shared + {}", self.meeting().offset);
        self.state("state_save", base, from)
    }

    pub(super) fn load_state(&mut self, to: &[VarId], from: Option<&Expr>) -> Result<String, Error> {
        let offset = self.meeting().offset;
        let base = match from {
            Some(rank) => {
                self.wrappers.insert(Wrapper::Cluster);
                format!("cluster_address(shared + {offset}, {})", self.uniform(rank))
            }
            None => String::new(),
        };
        self.state("state_load", base, to)
    }

    fn state(&mut self, function: &'static str, cluster: String, variables: &[VarId]) -> Result<String, Error> {
        let plan = self.e.plan;
        let threads = plan.computing_threads();
        let (r#type, state) = match self.meeting().by {
            MeetBy::Cluster => {
                self.wrappers.insert(Wrapper::StateCluster);
                ("u32", cluster)
            }
            MeetBy::Semaphore => {
                self.wrappers.insert(Wrapper::StateGlobal);
                let Meeting { memory, group, .. } = self.meeting().clone();
                let (words, group) = (self.meeting().state_bytes(threads) / 4, self.uniform(&group));
                ("auto", format!("reinterpret_cast<unsigned char*>(params.{} + (i64){group} * {words})", names::field(&memory)))
            }
        };
        let mut offset = 0;
        let mut runs = Vec::new();
        for &v in variables {
            let v = &plan.variables[v];
            let Storage::Fragment(shape) = v.storage else { unreachable!("verified: a state is of fragments") };
            let (m, n, name) = (v.m_tiles, v.n_tiles, &v.name);
            let (each, width, count, index, piece) = match shape {
                Shape::Accumulator => {
                    (format!("EACH(mt, {m}) EACH(nt, {n}) "), 16, m * n, format!("({n} * mt + nt)"), format!("{name}[mt][nt]"))
                }
                Shape::Row => (format!("EACH(mt, {m}) "), 8, m, "mt".into(), format!("{name}[mt]")),
                Shape::Column => (format!("EACH(nt, {n}) "), 8, n, "nt".into(), format!("{name}[nt]")),
                Shape::Uniform => (String::new(), 4, 1, "0".into(), name.clone()),
            };
            runs.push(StateRun { each, offset, width, index, piece });
            offset += width * count * threads;
        }
        self.render(&State { r#type, state, function, threads, runs })
    }
}
