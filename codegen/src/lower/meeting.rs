//! The loop over parts in a kernel whose programs walk the parts of another loop: they meet there, and merge what they have.
//!
//! Its body merges the state of one part into what is carried (see `launches/split.rs`). By a
//! semaphore every program makes one iteration of it, the one of its own part, and what is carried
//! goes from program to program:
//!
//! ```text
//! first part: carried = initial values      other parts: await part; carried = load state
//! carried = merge(carried, own)
//! not the last part: save state carried
//! pass part
//! last part: what comes after the loop
//! ```
//!
//! In a cluster every block makes all iterations, for a share of the rows: those of every so-many-th warp.
//!
//! ```text
//! save state own; cluster barrier
//! in the warps of the part:
//!   carried = initial values
//!   for each part: read = load state of part; carried = merge(carried, read)
//!   what comes after the loop
//! cluster barrier
//! ```

use flashtile_dsl::ir::{AxisId, BlockId, Op, OpId, ProgramDim, ValueId};

use super::context::{AfterMeeting, Home, Lowering, Meets};
use super::specialize::settled;
use crate::error::Error;
use crate::plan::{Atom, Expr, Guard, LoopInfo, MeetBy, Meeting, Operator, Stmt, StmtOp, VarId, any, state_bytes};
use crate::rewrite::edit;
use crate::schedule::Walk;

impl Lowering<'_> {
    /// The states that the body of a loop reads of parts: values of the program, and what they are there; nothing of other loops.
    pub(super) fn states_read(&self, body: BlockId) -> Vec<(ValueId, ValueId)> {
        let ops = self.kernel.blocks[body].ops.iter().map(|&op| &self.kernel.ops[op]);
        let read = ops.filter_map(|data| match data.op {
            Op::OfPart { value, .. } => Some((value, data.results[0])),
            _ => None,
        });
        read.collect()
    }

    pub(super) fn meet(&mut self, id: OpId, axis: AxisId, body: BlockId, init: &[ValueId]) -> Result<(), Error> {
        let states = self.states_read(body);
        let params = self.kernel.blocks[body].params.clone();
        if self.after_meeting.is_some() || !self.loops_by_axis.is_empty() {
            return Err(Error::unsupported("programs that meet twice, or in a loop", "meet once, after the loop", self.span));
        }
        self.acquire_pending();
        let own = states.iter().map(|&(value, _)| self.variable_of(value)).collect::<Result<Vec<_>, _>>()?;
        let meets = self.meets.ok_or_else(|| {
            let instead = "split a loop with split_k, and combine its parts with fixup=semaphore or cluster";
            Error::unsupported("programs that meet without parts", instead, self.span)
        })?;
        self.plan.meeting = Some(self.meeting(meets, &own));
        match meets.by {
            MeetBy::Semaphore => self.meet_by_semaphore(id, body, &params, init, (&states, &own)),
            MeetBy::Cluster => self.meet_in_cluster(id, axis, body, &params, init, (&states, &own)),
        }
    }

    fn variable_of(&self, value: ValueId) -> Result<VarId, Error> {
        match self.homes.get(&value) {
            Some(Home::Variable(v)) => Ok(*v),
            _ => Err(self.unsupported(value, "a state of a part that is in no register")),
        }
    }

    /// Numbers the programs that meet, by what the grid has besides parts.
    fn meeting(&mut self, Meets { by, parts }: Meets, own: &[VarId]) -> Meeting {
        let program = self.kernel.blocks[self.kernel.body].ops[0];
        let Op::Program(dims) = &self.kernel.ops[program].op else { unreachable!("verified: `program` is first") };
        let results = self.kernel.ops[program].results.clone();
        let counts = self.program_counts.clone();
        let place = |this: &Self, dim: &ProgramDim, v: ValueId| match dim {
            ProgramDim::Each(_) => this.index(v),
            ProgramDim::Tiles(_) => Expr::name(this.coordinate(v)),
        };
        let mut number: Option<Expr> = None;
        for ((dim, &v), count) in dims.iter().zip(&results).zip(&counts).skip(1) {
            let here = place(self, dim, v);
            number = Some(match number {
                None => here,
                Some(n) => Expr::infix(Operator::Add, Expr::infix(Operator::Mul, n, count.clone()), here),
            });
        }
        let group = self.unique("meeting");
        self.push_int(&group, number.unwrap_or(Expr::Int(0)));
        let Expr::Name(part) = self.index(results[0]) else { unreachable!("a part is a constant of the program") };
        Meeting {
            by,
            parts,
            part,
            group: Expr::name(group),
            memory: edit::free_name(self.kernel, "state", std::iter::empty()),
            bytes: state_bytes(&self.plan, own),
            offset: 0,
        }
    }

    fn meet_by_semaphore(
        &mut self,
        id: OpId,
        body: BlockId,
        params: &[ValueId],
        init: &[ValueId],
        (states, own): (&[(ValueId, ValueId)], &[VarId]),
    ) -> Result<(), Error> {
        let mut carried = Vec::new();
        let mut first = Vec::new();
        for ((&param, &start), &v) in params[1..].iter().zip(init).zip(own) {
            let value = self.expr(start)?;
            let name = self.value_name(param);
            let to = self.like(v, name);
            first.push(Stmt::new(StmtOp::Map { to, value }, self.span));
            self.homes.insert(param, Home::Variable(to));
            carried.push(to);
        }
        let load = [StmtOp::AwaitPart, StmtOp::LoadState { to: carried.clone(), from: None }];
        let load = load.map(|op| Stmt::new(op, self.span)).to_vec();
        self.push(StmtOp::When { guard: Guard::FirstPart, body: first, otherwise: load });
        // The iteration of the program's own part.
        for (&(_, read), &v) in states.iter().zip(own) {
            self.homes.insert(read, Home::Variable(v));
        }
        self.merge(body, &carried)?;
        let save = Stmt::new(StmtOp::SaveState(carried.clone()), self.span);
        self.push(StmtOp::When { guard: Guard::LastPart, body: Vec::new(), otherwise: vec![save] });
        self.push(StmtOp::PassPart);
        self.leave_meeting(id, &carried, Guard::LastPart);
        Ok(())
    }

    fn meet_in_cluster(
        &mut self,
        id: OpId,
        axis: AxisId,
        body: BlockId,
        params: &[ValueId],
        init: &[ValueId],
        (states, own): (&[(ValueId, ValueId)], &[VarId]),
    ) -> Result<(), Error> {
        self.push(StmtOp::SaveState(own.to_vec()));
        self.push(StmtOp::ClusterBarrier);
        self.after_meeting = Some(AfterMeeting { at: self.out.len(), guard: Guard::OwnWarps });
        let carried = self.enter_carried(params, init)?;
        let coordinate = self.value_name(params[0]);
        let parts = self.plan.meeting.as_ref().map_or(1, |meeting| meeting.parts);
        let count = Expr::Int(parts.into());
        let zero = Expr::Int(0);
        let info = LoopInfo {
            coordinate: coordinate.clone(),
            lo: zero.clone(),
            gap: None,
            list: None,
            full_lo: zero.clone(),
            full_hi: count.clone(),
            hi: count,
            walk: Walk::Ascending,
            first: zero,
            slots: 0,
            single: true,
        };
        self.plan.loops.push(info);
        let loop_id = self.plan.loops.len() - 1;
        self.loops_by_axis.insert(axis, loop_id);
        let statements = self.collect(|this| {
            let rank = Expr::name(coordinate);
            this.homes.insert(params[0], Home::Inline(rank.clone()));
            let mut to = Vec::new();
            for (&(_, read), &v) in states.iter().zip(own) {
                let name = this.value_name(read);
                let v = this.like(v, name);
                this.homes.insert(read, Home::Variable(v));
                to.push(v);
            }
            this.push(StmtOp::LoadState { to, from: Some(rank) });
            this.merge(body, &carried)
        })?;
        self.push(StmtOp::Loop { id: loop_id, from: 0, unroll: 1, body: statements });
        self.loops_by_axis.remove(&axis);
        self.leave_meeting(id, &carried, Guard::OwnWarps);
        Ok(())
    }

    /// The body of the loop, but for the reads.
    fn merge(&mut self, body: BlockId, carried: &[VarId]) -> Result<(), Error> {
        self.assign_in_place(body);
        for &op in &self.kernel.blocks[body].ops {
            if !matches!(self.kernel.ops[op].op, Op::OfPart { .. }) {
                self.op(op)?;
            }
        }
        self.leave_iteration(body, carried)
    }

    fn leave_meeting(&mut self, id: OpId, carried: &[VarId], guard: Guard) {
        for (&result, &v) in self.kernel.ops[id].results.iter().zip(carried) {
            self.homes.insert(result, Home::Variable(v));
        }
        if self.after_meeting.is_none() {
            self.after_meeting = Some(AfterMeeting { at: self.out.len(), guard });
        }
    }

    /// Puts what comes after the meeting where it belongs.
    pub(super) fn end_meeting(&mut self) -> Result<(), Error> {
        let Some(AfterMeeting { at, guard }) = self.after_meeting.take() else { return Ok(()) };
        let body = self.out.split_off(at);
        let of_block = |op: &StmtOp| {
            matches!(op, StmtOp::Copy { .. } | StmtOp::Compute { .. } | StmtOp::Barrier | StmtOp::Commit | StmtOp::Wait(_))
        };
        if guard == Guard::OwnWarps && any(&body, &of_block) {
            let what = "a tile in shared memory after the loop, where warps of a cluster go on by themselves";
            return Err(Error::unsupported(what, "take fixup=semaphore or fixup=kernel", self.span));
        }
        let cluster = guard == Guard::OwnWarps;
        let is_awaited = |op: &StmtOp| matches!(op, StmtOp::Dot { atom: Atom::Wgmma, .. });
        let body = if any(&body, &is_awaited) { settled(body) } else { body };
        self.push(StmtOp::When { guard, body, otherwise: Vec::new() });
        if cluster {
            self.push(StmtOp::ClusterBarrier);
        }
        Ok(())
    }
}
