//! Statements of specialised roles: rings, turns, programs.

use std::collections::HashSet;

use flashtile_dsl::ir::SizeKind;
use flashtile_templates::{
    Acquire, Advance, Barriers, BulkEnd, ExchangePhases, ExchangeSay, ExchangeWait, Fill, FillBox, FirstTurn, Let, List,
    MakeAgain, PassTurn, Release, ReleaseBefore, Ring, RingBarriers, Role, TakeTurn, When, WorkConsumers, WorkProducer,
    WorkStatic, Wrapper, Zeros,
};

use super::expression::{Domain, each_text};
use super::writer::{BODY, UNIFORM_WARP, Writer};
use crate::arch::WARPGROUP;
use crate::error::Error;
use crate::names;
use crate::plan::{
    Exchange, Expr, FEW_AGAIN, Iteration, Operator, Param, RoleKind, SharedTile, Slot, Stmt, StmtOp, TileId, WARY_LAUNCHES,
    WORK_SLOTS, any, effects,
};
use crate::schedule::Persistent;

impl Writer<'_> {
    /// The whole body: barriers, then a branch for each role.
    pub(super) fn roles(&mut self) -> Result<String, Error> {
        let plan = self.e.plan;
        self.wrappers.extend([Wrapper::Uniform, Wrapper::Mbarrier, Wrapper::PrefetchMap]);
        let computing = plan.roles.iter().position(|role| role.kind == RoleKind::Consumers);
        let computing = computing.expect("verified: one role computes");
        let first_group = plan.warps_before(computing) / WARPGROUP;
        let value = format!("uniform(threadIdx.x / {}) - {first_group}", 32 * WARPGROUP);
        let mut out = self.render(&Let { r#type: "int".into(), name: "group".into(), value })?;
        out.push_str(&self.barriers()?);
        out.push_str(&self.meet_launches());
        for (number, role) in plan.roles.iter().enumerate() {
            self.role = number;
            // Warpgroups are numbered from the first that computes.
            let first = i64::from(plan.warps_before(number) / WARPGROUP) - i64::from(first_group);
            let end = first + i64::from(role.warps / WARPGROUP);
            let condition = match number {
                0 => format!("group < {end}"),
                _ if number + 1 == plan.roles.len() => format!("group >= {first}"),
                _ => format!("group >= {first} && group < {end}"),
            };
            self.depth += 1;
            let (change, body) = match role.kind {
                RoleKind::Producer => ("dec", self.one_warp(&role.body)),
                RoleKind::All | RoleKind::Consumers => ("inc", self.consumers(&role.body)),
            };
            self.depth -= 1;
            let context =
                Role { name: role.name.clone(), condition, registers: role.registers.unwrap_or(0), change, body: BODY.into() };
            out.push_str(&self.nested(&context, body?)?);
        }
        Ok(out)
    }

    /// Makes the mbarriers of all rings ready, and writes the zeros that no copy fills.
    fn barriers(&mut self) -> Result<String, Error> {
        let plan = self.e.plan;
        let zeros: Vec<Zeros> = plan.tiles.iter().flat_map(SharedTile::zeros).map(|(at, bytes)| Zeros { at, bytes }).collect();
        if !zeros.is_empty() {
            self.wrappers.extend([Wrapper::SharedAccess, Wrapper::ProxyFence]);
        }
        let tiles = plan.tiles.iter().enumerate();
        let tiles = tiles.filter_map(|(ring, t)| Some((t.slots, t.ring_at()?, plan.ring_roles(ring))));
        let work = plan.work_ring.map(|at| (WORK_SLOTS, at, plan.work_ring_roles()));
        let ring = |(slots, full, roles)| {
            let (empty, arrivals) = (full + 8 * slots, plan.arrivals(&roles));
            RingBarriers { slots, full, fills: 1, empty, arrivals }
        };
        let warps = plan.computing_warps();
        let exchanged = plan.tiles.iter().filter_map(|t| Some((t.slots, t.exchange?)));
        let exchanged =
            exchanged.map(|(slots, full)| RingBarriers { slots, full, fills: warps, empty: full + 8 * slots, arrivals: warps });
        let list = plan.again_list().map(|list| self.render(&List { list }));
        let barriers = self.render(&Barriers { rings: tiles.chain(work).map(ring).chain(exchanged).collect(), zeros })?;
        Ok(list.transpose()?.unwrap_or_default() + &barriers)
    }

    /// The producer is one warp, so that its control flow is uniform; one lane of it starts copies.
    fn one_warp(&mut self, body: &[Stmt]) -> Result<String, Error> {
        self.depth += 1;
        let text = self.producer_body(body);
        self.depth -= 1;
        let condition = format!("uniform(threadIdx.x / 32) == {}", self.plan().warps_before(self.role));
        self.nested(&When { condition, rare: false, body: BODY.into() }, text?)
    }

    fn producer_body(&mut self, body: &[Stmt]) -> Result<String, Error> {
        let mut out = self.leader()?;
        for (number, map) in self.e.plan.maps.iter().enumerate() {
            let fills = |op: &StmtOp| match op {
                StmtOp::Fill { map, with, .. } => *map == number || with.iter().any(|companion| companion.map == number),
                _ => false,
            };
            if !any(body, &fills) {
                continue;
            }
            out.push_str(&format!("{}if (leader) prefetch_map(&{});\n", "  ".repeat(self.depth), map.name));
        }
        out.push_str(&self.places()?);
        out.push_str(&self.block(body)?);
        Ok(out)
    }

    /// The lane of a warp that adds rows to memory, and the number of the warp. The compiler has to
    /// know both for the same in all lanes: else it makes each addition a loop over the lanes, and
    /// the loop waits until the copy engine has taken the addition.
    fn adder(&mut self) -> Result<String, Error> {
        let first = self.e.plan.warps_before(self.role);
        let number = "uniform(threadIdx.x / 32)";
        let value = if first > 0 { format!("{number} - {first}") } else { number.into() };
        let warp = self.render(&Let { r#type: "int".into(), name: UNIFORM_WARP.into(), value })?;
        Ok(warp + &self.leader()?)
    }

    /// The lane of a warp that acts for all.
    fn leader(&mut self) -> Result<String, Error> {
        self.wrappers.insert(Wrapper::Elect);
        self.render(&Let { r#type: "bool".into(), name: "leader".into(), value: "elect()".into() })
    }

    fn consumers(&mut self, body: &[Stmt]) -> Result<String, Error> {
        let adds_rows = any(body, &|op| matches!(op, StmtOp::AddRows { .. }));
        let mut out = self.places()?;
        if adds_rows {
            out.push_str(&self.adder()?);
        }
        if any(body, &|op| *op == StmtOp::TakeTurn) {
            self.wrappers.insert(Wrapper::NamedBarrier);
            out.push_str(&self.render(&FirstTurn { groups: self.groups() })?);
        }
        for t in self.e.plan.tiles.iter().filter(|t| t.exchange.is_some()) {
            // A slot is free before it was ever freed.
            let phases = ((1 << t.slots) - 1) << t.slots;
            out.push_str(&self.render(&ExchangePhases { name: t.name.clone(), phases })?);
        }
        self.names(&mut out)?;
        out.push_str(&self.block(body)?);
        if adds_rows {
            out.push_str(&self.render(&BulkEnd {})?);
        }
        Ok(out)
    }

    /// The role's place in every ring that it uses. A slot is empty before it was ever full: the
    /// role that fills it waits for the phase before the first.
    fn places(&self) -> Result<String, Error> {
        let mut out = String::new();
        for (ring, t) in self.e.plan.tiles.iter().enumerate().filter(|(_, t)| t.ring_at().is_some()) {
            let roles = self.e.plan.ring_roles(ring);
            let phase = match (roles.fills.contains(&self.role), roles.drains.contains(&self.role)) {
                (true, _) => 1,
                (false, true) => 0,
                (false, false) => continue,
            };
            out.push_str(&self.render(&Ring { name: t.name.clone(), slots: t.slots, phase })?);
        }
        Ok(out)
    }

    fn groups(&self) -> u32 {
        self.plan().computing_warps() / WARPGROUP
    }

    /// Addresses of the full and the empty mbarrier of a ring's next slot, and the step to the one after.
    fn barriers_of(&self, tile: TileId) -> (String, String, String) {
        let t = &self.e.plan.tiles[tile];
        let at = t.ring_at().expect("a ring between roles has mbarriers");
        let (name, slots) = (&t.name, t.slots);
        let (here, advance) = if slots > 1 {
            let advance = format!("if (++{name}_slot == {slots}) {{ {name}_slot = 0; {name}_phase ^= 1; }}");
            (format!(" + 8 * {name}_slot"), advance)
        } else {
            (String::new(), format!("{name}_phase ^= 1;"))
        };
        (format!("shared + {at}{here}"), format!("shared + {}{here}", at + 8 * slots), advance)
    }

    pub(super) fn fill(&mut self, op: &StmtOp) -> Result<String, Error> {
        let StmtOp::Fill { tile, slot, map, at, with } = op else { unreachable!("a fill") };
        let (full, empty, advance) = self.barriers_of(*tile);
        let mut boxes = self.boxes(*tile, *slot, *map, at);
        let mut bytes = self.e.plan.tiles[*tile].filled_bytes();
        for companion in with {
            boxes.extend(self.boxes(companion.tile, *slot, companion.map, &companion.at));
            bytes += self.e.plan.tiles[companion.tile].filled_bytes();
        }
        self.render(&Fill { name: self.e.plan.tiles[*tile].name.clone(), empty, full, bytes, boxes, advance })
    }

    /// The boxes that fill a slot of a tile, one for each part of its columns.
    fn boxes(&mut self, tile: TileId, slot: Slot, map: usize, at: &[Expr]) -> Vec<FillBox> {
        self.wrappers.insert(Wrapper::Tma { rank: at.len() as u32 });
        let t = &self.e.plan.tiles[tile];
        let slot = self.slot_address(tile, slot);
        let others: String = at[1..].iter().map(|e| format!(", {}", self.uniform(e))).collect();
        let part = |part: u32| {
            let to = if part == 0 { slot.clone() } else { format!("{slot} + {}", part * t.rows * t.pitch) };
            let column = Expr::infix(Operator::Add, at[0].clone(), Expr::Int(i64::from(part * t.pitch / 2)));
            let at = format!("{}{others}", self.uniform(&column));
            FillBox { to, map: self.e.plan.maps[map].name.clone(), at }
        };
        (0..t.filled_slabs()).map(part).collect()
    }

    pub(super) fn acquire(&mut self, tile: TileId) -> Result<String, Error> {
        let (full, ..) = self.barriers_of(tile);
        self.render(&Acquire { name: self.e.plan.tiles[tile].name.clone(), full })
    }

    pub(super) fn release(&mut self, tile: TileId) -> Result<String, Error> {
        let (_, empty, advance) = self.barriers_of(tile);
        self.render(&Release { empty, advance })
    }

    pub(super) fn advance(&mut self, tile: TileId) -> Result<String, Error> {
        let (_, _, advance) = self.barriers_of(tile);
        self.render(&Advance { advance })
    }

    pub(super) fn release_before(&mut self, tile: TileId) -> Result<String, Error> {
        let t = &self.e.plan.tiles[tile];
        let (name, slots) = (t.name.clone(), t.slots);
        let empty = t.ring_at().expect("a ring between roles has mbarriers") + 8 * slots;
        self.render(&ReleaseBefore { name, empty, slots })
    }

    /// A step of the exchange of a slot that warps stage for each other.
    pub(super) fn exchange(&mut self, step: Exchange, tile: TileId, slot: Slot) -> Result<String, Error> {
        let number = self.slot_number(tile, slot);
        let t = &self.e.plan.tiles[tile];
        let (name, slots, full) = (t.name.clone(), t.slots, t.exchange.expect("verified: it is exchanged"));
        let at = |offset: u32| format!("shared + {}", full + offset);
        match step {
            Exchange::Reserve => {
                let bit = format!("({number} + {slots})");
                self.render(&ExchangeWait { name, at: at(8 * slots), slot: number, bit })
            }
            Exchange::Await => {
                let bit = format!("({number})");
                self.render(&ExchangeWait { name, at: at(0), slot: number, bit })
            }
            Exchange::Supply => self.render(&ExchangeSay { together: true, at: at(0), slot: number }),
            Exchange::Free => self.render(&ExchangeSay { together: false, at: at(8 * slots), slot: number }),
        }
    }

    pub(super) fn take_turn(&mut self) -> Result<String, Error> {
        self.render(&TakeTurn {})
    }

    pub(super) fn pass_turn(&mut self) -> Result<String, Error> {
        self.render(&PassTurn { groups: self.groups() })
    }

    /// Name and value of the coordinate of a step.
    pub(super) fn step_coordinate(&mut self, at: Iteration) -> (String, String) {
        let l = &self.plan().loops[at.of_loop()];
        let value = match at {
            Iteration::Ahead(_, n) => l.onwards(Expr::name(format!("{}_pair", l.coordinate)), n),
            // Of the iteration around the step.
            Iteration::Behind(..) => Expr::name(format!("{}_before", l.coordinate)),
            Iteration::First(..) | Iteration::Last(_) => l.place(at),
        };
        (l.coordinate.clone(), self.uniform(&value))
    }

    /// Run-time sizes that statements name.
    fn sizes_named(&self, body: &[Stmt]) -> Vec<String> {
        let named: HashSet<String> = body.iter().flat_map(|s| effects(self.plan(), s).reads).collect();
        let runtime = self.kernel().sizes.values().filter(|s| s.kind == SizeKind::Runtime);
        let is_read = |name: &&String| named.contains(&Param::Value((*name).clone()).to_string());
        runtime.map(|s| &s.name).filter(is_read).map(|name| names::field(name)).collect()
    }

    pub(super) fn work(&mut self, body: &[Stmt]) -> Result<String, Error> {
        let plan = self.e.plan;
        let programs = self.uniform(&plan.programs);
        let sizes = self.sizes_named(body);
        self.wrappers.insert(Wrapper::Mov);
        self.depth += 1;
        let body = self.inner(body);
        self.depth -= 1;
        let body = body?;
        let Some(full) = plan.work_ring else {
            debug_assert_eq!(plan.work, Persistent::Static);
            return self.nested(&WorkStatic { programs, sizes, body: BODY.into() }, body);
        };
        let (empty, numbers, slots) = (full + 8 * WORK_SLOTS, full + 16 * WORK_SLOTS, WORK_SLOTS);
        let (again, list) = (plan.makes_again(), plan.again_list().unwrap_or_default());
        if plan.work_ring_roles().fills.contains(&self.role) {
            let dynamic = plan.work == Persistent::Dynamic;
            let context = WorkProducer {
                again,
                wary_launches: WARY_LAUNCHES,
                few_again: FEW_AGAIN,
                dynamic,
                list,
                programs,
                full,
                empty,
                numbers,
                slots,
                sizes,
                body: BODY.into(),
            };
            return self.nested(&context, body);
        }
        self.nested(&WorkConsumers { again, programs, full, empty, numbers, slots, sizes, body: BODY.into() }, body)
    }

    pub(super) fn make_again(&mut self, condition: &Expr, m_tiles: u32) -> Result<String, Error> {
        self.wrappers.insert(Wrapper::ListAgain);
        let condition = self.text(condition, Domain::Row);
        let list = self.e.plan.again_list().expect("verified: programs come by a ring");
        self.render(&MakeAgain { each: each_text(Domain::Row, m_tiles, 1), condition, list })
    }
}
