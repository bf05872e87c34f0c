//! Tests of plans: what is legal and why not, planted faults, plans that are given, and what the
//! model says of them.
//!
//! One program of several files, since each program links all libraries. `cargo test --release -p
//! flashtile-tests --test plans column_groups::` runs those of one file.

#[path = "../tests/column_groups.rs"]
mod column_groups;
#[path = "../tests/conflicts.rs"]
mod conflicts;
#[path = "../tests/draw.rs"]
mod draw;
#[path = "../tests/given_plans.rs"]
mod given_plans;
#[path = "../tests/knobs.rs"]
mod knobs;
#[path = "../tests/lanes.rs"]
mod lanes;
#[path = "../tests/model.rs"]
mod model;
#[path = "../tests/plan.rs"]
mod plan;
#[path = "../tests/plan_add.rs"]
mod plan_add;
#[path = "../tests/plan_faults.rs"]
mod plan_faults;
#[path = "../tests/plan_fused.rs"]
mod plan_fused;
#[path = "../tests/plan_text.rs"]
mod plan_text;
#[path = "../tests/roles.rs"]
mod roles;
#[path = "../tests/three_roles.rs"]
mod three_roles;
