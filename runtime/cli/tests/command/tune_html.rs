//! `tune --html`: the page of a search without a GPU. All but the first need NVRTC.

use roxmltree::{Document, Node, ParsingOptions};

use crate::support::Sandbox;

const SMALL: &str = "--arch sm_80 --dtype f16 --shape B=1,H=2,G=2,M=128,N=128,D=64";

fn parsed(page: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(page, options).unwrap_or_else(|error| panic!("{error}"))
}

fn text(node: Node<'_, '_>) -> String {
    node.descendants().filter(Node::is_text).filter_map(|part| part.text()).collect()
}

/// Rows of the tables of candidates that have a class, as text.
fn rows(document: &Document<'_>, class: &str) -> Vec<String> {
    let rows = document.descendants().filter(|node| node.has_tag_name("tr") && node.attribute("class") == Some(class));
    rows.map(text).collect()
}

/// Tuning would fail for want of NVRTC, with another code.
#[test]
fn a_page_that_cannot_be_written_is_told_before_tuning() {
    let sandbox = Sandbox::new();
    sandbox.write("file", "kept");
    for path in ["no/such/page.html", "file/page.html"] {
        let told = sandbox.run(&format!("tune attention {SMALL} --html {path}"));
        told.fails_with(10, &format!("failed to write {path}"));
    }
    sandbox.run(&format!("tune attention {SMALL} --html .")).fails_with(10, "it is a directory; name a file in it");
    sandbox.run(&format!("tune attention {SMALL} --html file")).fails_with(7, "failed to load");
    let kept = std::fs::read_to_string(sandbox.path().join("file")).expect("reads");
    assert_eq!(kept, "kept", "a search that fails leaves what was there");
}

#[test]
fn the_page_has_every_candidate_with_its_reason() {
    let sandbox = Sandbox::new();
    sandbox.write("schedules", "defaults\nstages=1\nblock_m=24\nswizzle=off\nsplit_k=2\nsplit_k=2,combine.warps=4\n");
    sandbox.write("page.html", "an older page");
    let tuned =
        sandbox.run_compiling(&format!("tune attention --device emulator {SMALL} --schedules schedules --html page.html --json"));
    let result = &tuned.json()[0];
    let page = std::fs::read_to_string(sandbox.path().join("page.html")).expect("was written");
    let document = parsed(&page);
    let (won, slower, failed, refused) =
        (rows(&document, "winner"), rows(&document, "slower"), rows(&document, "failed"), rows(&document, "refused"));
    assert_eq!((won.len(), slower.len(), failed.len(), refused.len()), (1, 3, 1, 1), "{slower:?} {failed:?} {refused:?}");
    let count = |name: &str| result[name].as_u64().expect("a number");
    assert_eq!((count("candidates"), count("illegal")), (5, 1), "{result}");
    let schedule = result["schedule"].as_str().expect("a schedule").replace(',', ", ");
    assert!(won[0].contains(&schedule), "{schedule}: {won:?}");
    assert!(failed[0].contains("bank conflicts") && failed[0].contains("swizzle=off"), "{failed:?}");
    assert!(refused[0].contains("refused by the plan: block_m=24"), "{refused:?}");
    assert!(page.contains("Nothing here was measured: no GPU was used"));
    // The winner's plan is that which `inspect` prints.
    let shown = sandbox.run_compiling(&format!(
        "inspect attention --emit plan {SMALL} --schedule {}",
        result["schedule"].as_str().expect("a schedule")
    ));
    let plan = document.descendants().find(|node| node.has_tag_name("pre")).map(text).expect("a plan");
    assert_eq!(plan.trim_end(), shown.succeeds().trim_end());
    // So are its tiles.
    let drawn: Vec<String> = document.descendants().filter(|node| node.has_tag_name("figure")).map(text).collect();
    assert!(drawn.len() >= 3 && drawn.iter().all(|tile| tile.contains("bytes from row to row")), "{drawn:?}");
    // From the cache, where nothing is run again.
    sandbox.run_compiling(&format!("tune attention {SMALL} --schedules schedules --html again.html")).succeeds();
    let again = std::fs::read_to_string(sandbox.path().join("again.html")).expect("was written");
    assert_eq!(rows(&parsed(&again), "failed"), failed);
}

#[test]
fn a_search_with_no_winner_has_a_page_too() {
    let sandbox = Sandbox::new();
    sandbox.write("schedules", "block_m=24\nswizzle=off,stages=1\n");
    let told = sandbox.run_compiling(&format!("tune attention {SMALL} --schedules schedules --html page.html"));
    assert_ne!(told.code, 0, "{}", told.stdout);
    let page = std::fs::read_to_string(sandbox.path().join("page.html")).expect("was written");
    let document = parsed(&page);
    assert_eq!((rows(&document, "winner").len(), rows(&document, "failed").len(), rows(&document, "refused").len()), (0, 1, 1));
    assert!(page.contains("No candidate works."));
}

#[test]
fn kernels_of_a_gradient_share_a_page() {
    let sandbox = Sandbox::new();
    let search = format!("tune attention --grad q,k,v {SMALL} --max-candidates 1 --html page.html");
    sandbox.run_compiling(&search).succeeds();
    let page = std::fs::read_to_string(sandbox.path().join("page.html")).expect("was written");
    let headings: Vec<String> = parsed(&page).descendants().filter(|node| node.has_tag_name("h1")).map(text).collect();
    assert_eq!(headings, ["attention", "attention_grad_rows", "attention_grad_columns"]);
}
