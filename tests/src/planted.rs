//! Faults planted in plans: the first statement that is as wanted is changed, and the verifier is
//! asked.

use flashtile_codegen::plan::{Plan, Stmt, StmtOp, verify};

/// Changes the first statement that `change` accepts, which is given its list and its place there;
/// whether there was one.
pub fn change_first(body: &mut Vec<Stmt>, change: &mut dyn FnMut(&mut Vec<Stmt>, usize) -> bool) -> bool {
    for index in 0..body.len() {
        if change(body, index) {
            return true;
        }
        let nested = body.get_mut(index).map(|s| s.op.bodies_mut()).unwrap_or_default();
        if nested.into_iter().any(|body| change_first(body, change)) {
            return true;
        }
    }
    false
}

/// Plants a fault in the statements of a role and gives what the verifier says.
///
/// # Panics
/// If the plan is wrong before, or nothing is changed.
pub fn planted(mut plan: Plan, role: usize, change: &mut dyn FnMut(&mut Vec<Stmt>, usize) -> bool) -> Vec<String> {
    assert_eq!(verify(&plan), Vec::<String>::new(), "the plan is right before the fault is planted");
    assert!(change_first(&mut plan.roles[role].body, change), "the fault was planted");
    verify(&plan)
}

/// Removes the first statement that is wanted.
pub fn remove(wanted: impl Fn(&StmtOp) -> bool) -> impl FnMut(&mut Vec<Stmt>, usize) -> bool {
    move |body, index| {
        let hit = wanted(&body[index].op);
        if hit {
            body.remove(index);
        }
        hit
    }
}

/// What the verifier says of a plan without the statement of a role that is wanted and stands behind
/// so many others that are; nothing where there is none.
pub fn without_nth(mut plan: Plan, role: usize, wanted: impl Fn(&StmtOp) -> bool, nth: usize) -> Option<Vec<String>> {
    let mut seen = 0;
    let removed = change_first(&mut plan.roles[role].body, &mut |body, index| {
        let here = wanted(&body[index].op);
        seen += usize::from(here);
        let hit = here && seen == nth + 1;
        if hit {
            body.remove(index);
        }
        hit
    });
    removed.then(|| verify(&plan))
}

/// Asserts that one of the faults is as wanted.
///
/// # Panics
/// If none is.
pub fn says(faults: &[String], wanted: &str) {
    assert!(faults.iter().any(|f| f.contains(wanted)), "wanted `{wanted}`, got {faults:#?}");
}
