//! Published experiments, with no GPU, no NVRTC and no PyTorch.

use crate::support::Sandbox;

/// Without a compiler the CPU is the best device.
const REPRO: &str = "repro --device cpu --out out";

#[test]
fn experiments_are_listed_and_unknown_ones_refused() {
    let sandbox = Sandbox::new();
    let names: Vec<String> =
        sandbox.run("repro --list --json").json().iter().map(|e| e["experiment"].as_str().expect("a name").to_owned()).collect();
    assert_eq!(names, ["ladder", "archaeology", "dependence", "rope", "memory"]);
    let list = sandbox.run("repro --list");
    assert!(names.iter().all(|name| list.succeeds().contains(name)), "{}", list.stdout);
    sandbox.run("repro laddr").fails_with(2, "no experiment `laddr`; expected all, or some of ladder, archaeology");
    sandbox.run("repro").fails_with(2, "required");
    sandbox.run("repro ladder --device gpu").fails_with(2, "`gpu` is not a device");
    sandbox.run("repro ladder --arch sm_42").fails_with(6, "`sm_42` is not an architecture");
    sandbox.write("out", "a file, no directory");
    sandbox.run(&format!("{REPRO} ladder")).fails_with(10, "failed to create out");
}

#[test]
fn the_ladder_is_checked_and_printed_beside_the_published_rates() {
    let sandbox = Sandbox::new();
    let ladder = sandbox.run(&format!("{REPRO} ladder --arch sm_80"));
    for text in ["TFLOP/s, A100-SXM4-80GB", "01 base", "+459.3 %", "faster there", "187.3", "FlashAttention-2", "checked"] {
        assert!(ladder.succeeds().contains(text), "{text}: {}", ladder.stdout);
    }
    let csv = std::fs::read_to_string(sandbox.path().join("out/ladder.csv")).expect("written");
    let lines: Vec<&str> = csv.split("\r\n").filter(|line| !line.is_empty()).collect();
    let columns = lines[0].split(',').count();
    assert_eq!(lines.len(), 1 + 9, "seven kernels, the tuned one, a peer");
    for line in &lines {
        // Commas of shapes and schedules are in quotes.
        let quoted = line.split('"').enumerate().filter(|(n, _)| n % 2 == 0).map(|(_, text)| text.matches(',').count());
        assert_eq!(quoted.sum::<usize>() + 1, columns, "{line}");
    }
    assert!(lines[2].starts_with("ladder,rate,02 swizzle,,02 swizzle,TFLOP/s,,165,A100-SXM4-80GB,"), "{}", lines[2]);
    assert!(!lines[2].contains("swizzle=") && lines[1].contains("swizzle=off"), "xor is the default: {csv}");
    let svg = std::fs::read_to_string(sandbox.path().join("out/ladder-rate.svg")).expect("drawn");
    well_formed(&svg);
    assert_eq!(svg.matches("class=\"published\"").count(), 8, "seven kernels and FlashAttention-2");
}

#[test]
fn tables_are_markdown_or_json_too() {
    let sandbox = Sandbox::new();
    let markdown = sandbox.run(&format!("{REPRO} ladder --markdown"));
    assert!(
        markdown.succeeds().contains("| step | TFLOP/s | faster | TFLOP/s, A100-SXM4-80GB | faster there | than |"),
        "{}",
        markdown.stdout
    );
    let cells = sandbox.run(&format!("{REPRO} ladder --json")).json();
    let (files, cells) = cells.split_last().expect("a last line");
    assert_eq!(files["files"].as_array().map(Vec::len), Some(2));
    assert_eq!(cells.len(), 9);
    assert_eq!((cells[0]["series"].as_str(), cells[0]["published"].as_f64()), (Some("01 base"), Some(29.5)));
    assert!(cells[0]["ours"].is_null() && cells[0]["max_error"].as_f64().is_some_and(|e| e > 0.0));
}

#[test]
fn what_the_dependence_analysis_says_is_what_was_published_or_why_not() {
    let sandbox = Sandbox::new();
    let found = sandbox.run(&format!("{REPRO} dependence"));
    for text in ["D    of acc, v, o: parallel", "SCC3 {S14} carried by j", "(1, -1)", "(-1, 1)"] {
        assert!(found.succeeds().contains(text), "{text}: {}", found.stdout);
    }
    assert!(!found.stdout.contains("DOES NOT HOLD"));
    let lines = sandbox.run(&format!("{REPRO} dependence --arch sm_75 --json")).json();
    // What an architecture lacks is said in its place, and is no failure.
    let clusters: Vec<_> = lines.iter().filter(|line| line["series"] == "8, cluster").collect();
    assert_eq!(clusters.len(), 18);
    assert!(clusters.iter().all(|c| c["note"] == "not on sm_75: it has no clusters"));
    let claims: Vec<_> = lines.iter().filter(|line| line["claim"].is_string()).collect();
    assert_eq!(claims.len(), 20);
    // The first listing is analysed as it stands, and as the conclusions need it.
    let of = |about: &str, claim: &str| {
        let is_it = |c: &&&serde_json::Value| {
            c["about"].as_str().is_some_and(|a| a.contains(about)) && c["claim"].as_str().is_some_and(|a| a.contains(claim))
        };
        *claims.iter().find(is_it).unwrap_or_else(|| panic!("{about}: {claim}"))
    };
    for (about, claim, holds) in [
        ("listing as published", "back edges", true),
        ("listing as published", "i and d carry nothing", false),
        ("listing as published", "every order of i, j and d", false),
        ("outside of the loop over d", "back edges", true),
        ("outside of the loop over d", "i and d carry nothing", true),
        ("outside of the loop over d", "every order of i, j and d", true),
        ("outside of the loop over d", "the second listing", false),
        ("S10", "exp(S_ij - m_ij) * v_jd", false),
        ("S10", "in place of l_i", true),
    ] {
        let found = of(about, claim);
        assert_eq!((found["holds"].as_bool(), found["why"].is_string()), (Some(holds), !holds), "{found}");
    }
    assert_eq!(of("listing as published", "i and d carry nothing")["found"], "parallel: i; carries: j, d");
    assert!(claims.iter().all(|claim| claim["holds"] == true || claim["why"].is_string()));
    claims_are_on_the_page("dependence", &claims);
}

/// Checks that a page has these claims as `--markdown` prints them, word for word.
fn claims_are_on_the_page(name: &str, claims: &[&serde_json::Value]) {
    let path = format!("{}/../../docs/repro/{name}.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    assert!(!claims.is_empty());
    for claim in claims {
        let text = |key: &str| claim[key].as_str().unwrap_or_default().to_owned();
        let verdict = if claim["holds"] == true { "holds".to_owned() } else { format!("does not hold: {}", text("why")) };
        let line = format!("| {} | {} | {verdict} |", text("claim"), text("found"));
        let has = page.lines().any(|on_page| on_page == line);
        assert!(has, "docs/repro/{name}.md lacks this line of `flashtile repro {name} --markdown`:\n{line}");
    }
}

#[test]
fn memory_is_counted_without_a_gpu_and_is_what_was_published() {
    let sandbox = Sandbox::new();
    let cells = sandbox.run(&format!("{REPRO} memory --arch sm_90a --json")).json();
    let of = |table: &str, series: &str| -> Vec<&serde_json::Value> {
        cells.iter().filter(|c| c["table"] == table && c["series"] == series).collect()
    };
    assert_eq!(of("memory", "naive").len(), 5);
    for cell in [of("memory", "naive"), of("memory", "flash")].concat() {
        let (ours, published) = (cell["ours"].as_f64().expect("counted"), cell["published"].as_f64().expect("published"));
        // Flash writes the logarithms of the sums too, 4 bytes a row.
        assert!((ours - published).abs() < 0.006 + 0.033 * published, "{cell}");
    }
    let tuned = of("memory", "flash, tuned");
    let longest = tuned.last().expect("five lengths");
    assert!(longest["schedules"].as_str().is_some_and(|s| s.contains("split_k=")), "few programs of many keys: {longest}");
    assert!(longest["ours"].as_f64() > Some(1.5), "memory between launches counts: {longest}");
    // What the post adds up for 2048 keys: 33 MB.
    let traffic = of("traffic", "naive").into_iter().find(|c| c["row"].as_f64() == Some(2048.0)).expect("a row");
    let (ours, published) = (traffic["ours"].as_f64().expect("counted"), traffic["published"].as_f64().expect("published"));
    assert!((ours - published).abs() < 0.3, "the output is in ours: {traffic}");
    let grid = cells.iter().find(|c| c["claim"].as_str().is_some_and(|c| c.starts_with("192 "))).expect("a claim");
    assert!(grid["found"].as_str().is_some_and(|f| f.starts_with("192 of the 192 on ")), "{grid}");
    let svg = std::fs::read_to_string(sandbox.path().join("out/memory-memory.svg")).expect("drawn");
    well_formed(&svg);
    assert_eq!(svg.matches("<polyline class=\"ours\"").count(), 3);
    // The page has the claims that do not depend on the device.
    let claims: Vec<_> = cells.iter().filter(|c| c["found"].as_str().is_some_and(|f| f.contains(" cases of `"))).collect();
    claims_are_on_the_page("memory", &claims);
    let planted = cells.iter().filter(|c| c["claim"].as_str().is_some_and(|c| c.contains("boundary mask")));
    let planted: Vec<_> = planted.collect();
    assert_eq!(planted.len(), 2);
    assert!(planted.iter().all(|c| c["holds"].is_null() && c["why"].as_str().is_some_and(|w| w.contains("--device emulator"))));
}

#[test]
fn a_python_without_pytorch_is_refused_if_it_was_named() {
    // Where there is no GPU no peer is run, so that only the flag's own faults can show.
    let sandbox = Sandbox::new();
    sandbox.run(&format!("{REPRO} ladder --python /x --no-peers")).fails_with(2, "cannot be used with");
}

/// Planted faults are found by the cases of the kernel that the text claims to be.
#[test]
fn verify_judges_a_kernel_as_another() {
    let sandbox = Sandbox::new();
    let texts = concat!(env!("CARGO_MANIFEST_DIR"), "/src/repro/kernels/faults.rs");
    let verify = |name: &str, role: &str| {
        sandbox.run(&format!("verify {texts}:{name} --as {role} --device cpu --filter /f16/ --filter 515"))
    };
    verify("mask_after_maximum", "causal_attention").fails_with(8, "cases failed on cpu");
    verify("factor_of_the_step_before", "attention").fails_with(8, "cases failed on cpu");
    assert!(verify("neither_fault", "causal_attention").succeeds().contains("cases passed"));
    verify("neither_fault", "no_kernel").fails_with(2, "the suite has no kernel of this name");
}

/// Every element is closed, in order.
fn well_formed(svg: &str) {
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.ends_with("</svg>\n"));
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').expect("a tag ends");
        assert!(!text.contains('&') || text.contains(';'), "{text}");
        let name = |tag: &str| tag.split([' ', '/']).next().unwrap_or_default().to_owned();
        match (tag.strip_prefix('/'), tag.ends_with('/')) {
            (Some(closed), _) => assert_eq!(open.pop(), Some(closed.to_owned())),
            (None, true) => {}
            (None, false) => open.push(name(tag)),
        }
        assert!(!tag.contains("NaN") && !tag.contains("inf"), "{tag}");
    }
    assert!(open.is_empty(), "{open:?}");
}

/// Each step of the archaeology has what the post profiled beside it, marked with its GPU.
#[test]
fn the_archaeology_has_the_profile_of_the_post_beside_ours() {
    let sandbox = Sandbox::new();
    // The GPU of the post is of this generation.
    let ran = sandbox.run(&format!("{REPRO} archaeology --arch sm_75 --markdown"));
    let text = ran.succeeds();
    let head = "| occupancy | occupancy, RTX 2070 | limited by | limited by, RTX 2070 | bytes read | bytes read, RTX 2070 |";
    assert!(text.contains(head), "{text}");
    let line = |step: &str, has: &str| text.lines().find(|l| l.starts_with(&format!("| {step} |")) && l.contains(has)).is_some();
    assert!(line("v1", "11.58 GB") && line("v1", "166.5") && line("v2", "412.2 MB") && line("v2", "| 63 % |"), "{text}");
    assert!(line("v2, K transposed before", "34.00"), "{text}");
    assert!(text.contains("| step | FLOP/B |"), "with no GPU the intensity alone: {text}");
    let cells = sandbox.run(&format!("{REPRO} archaeology --arch sm_75 --json")).json();
    let halves: Vec<_> = cells.iter().filter(|c| c["table"] == "f16" && c["origin"] == "given").collect();
    assert_eq!(halves.len(), 7);
    assert!(halves.iter().all(|c| c["schedules"].as_str().is_some_and(|s| s.contains("tensor_op=mma_m16n8k8"))));
    let row = |name: &str| cells.iter().find(|c| c["row"] == name && c["table"] == "f32").unwrap_or_else(|| panic!("{name}"));
    let schedule = |name: &str| row(name)["schedules"].as_str().expect("a schedule").to_owned();
    assert!(schedule("v1").contains("loop_order=interchanged") && !schedule("v2").contains("loop_order="));
    assert!(schedule("v2, K transposed before").contains("b_layout=pretransposed"));
    let bytes = |name: &str, what: &str| row(name)[what].as_f64().expect("bytes");
    // 64 chunks of keys: Q and the state are read for each, the state is written for each.
    let (chunk, state) = (83_886_080.0, 83_886_080.0 / 32.0 * 34.0);
    assert_eq!(bytes("v1", "bytes_read"), 64.0 * (chunk + state) + 2.0 * chunk + state);
    assert_eq!(bytes("v1", "bytes_written"), 65.0 * state + chunk / 32.0 * 33.0);
    assert_eq!(row("v1")["published_bytes_read"].as_f64(), Some(11.58e9));
}
