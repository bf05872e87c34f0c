//! Pages hold what a reader can use: no line that a script left behind, and a command for every
//! table of figures.

use std::path::{Path, PathBuf};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every Markdown page of the repository's root and of `docs`, with its name.
fn pages() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("docs")];
    let mut files: Vec<PathBuf> = entries(&root());
    while let Some(folder) = folders.pop() {
        for entry in entries(&folder) {
            if entry.is_dir() { folders.push(entry) } else { files.push(entry) }
        }
    }
    for file in files.into_iter().filter(|file| file.extension().is_some_and(|e| e == "md")) {
        let text = std::fs::read_to_string(&file).expect("a page is text");
        found.push((file.display().to_string(), text));
    }
    found.sort();
    found
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    entries.map(|entry| entry.expect("the folder is readable").path()).collect()
}

/// Whether a line is what a script printed: numbers and brackets, no words. The last line of a
/// paragraph may be a number with a full stop.
fn is_stray(line: &str) -> bool {
    let line = line.trim();
    let has_figure = line.contains(|c: char| c.is_ascii_digit() || "[]{}".contains(c));
    let only_figures = line.chars().all(|c| c.is_ascii_digit() || c.is_whitespace() || "[](){}.,:;+-*/=eE%'\"".contains(c));
    has_figure && only_figures && !line.ends_with(").") && !line.ends_with('.')
}

/// Lines of a page that are stray, with their numbers. Code is what it is.
fn stray_lines(text: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let mut stray = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        is_code ^= line.trim_start().starts_with("```");
        if !is_code && is_stray(line) {
            stray.push((number, line));
        }
    }
    stray
}

#[test]
fn pages_hold_no_output_of_scripts() {
    assert_eq!(stray_lines("a table:\n[] 87\n72 1.165197246925882\n"), [(2, "[] 87"), (3, "72 1.165197246925882")]);
    assert_eq!(stray_lines("from 0.86 to\n0.97).\n\n```text\n1 2\n```\n| 1 | 2 |\n"), []);
    for (name, text) in pages() {
        assert_eq!(stray_lines(&text), [], "{name}");
    }
}

/// What a command that makes figures looks like.
const COMMANDS: [&str; 6] = ["flashtile ", "python3 bench/", "bench.py", "cargo run", "cargo test", "`ncu"];

/// Whether most cells of a table after its first column are figures.
fn holds_figures(rows: &[&str]) -> bool {
    let cells: Vec<&str> = rows.iter().flat_map(|row| row.trim().trim_matches('|').split('|').skip(1)).map(str::trim).collect();
    let is_figure = |cell: &&&str| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+');
    2 * cells.iter().filter(is_figure).count() >= cells.len().max(1)
}

/// Numbers of the lines at which tables of figures begin for which neither their section nor they
/// themselves name a command. A section begins at a heading of the first or second level.
fn tables_without_command(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut section, mut without) = (0, Vec::new());
    let mut at = 0;
    while at < lines.len() {
        if lines[at].starts_with("# ") || lines[at].starts_with("## ") {
            section = at;
        }
        let rows = lines[at..].iter().take_while(|line| line.trim_start().starts_with('|')).count();
        if rows > 2 {
            let told = lines[section..at + rows].iter().any(|line| COMMANDS.iter().any(|command| line.contains(command)));
            if holds_figures(&lines[at + 2..at + rows]) && !told {
                without.push(at + 1);
            }
        }
        at += rows.max(1);
    }
    without
}

#[test]
fn every_table_of_figures_has_its_command() {
    let table = "| N | ms |\n| --- | --- |\n| 512 | 0.1 |\n";
    assert_eq!(tables_without_command(&format!("## Times\n\n{table}")), [3]);
    assert_eq!(
        tables_without_command(&format!("## Times\n\n`flashtile repro all`:\n\n### More\n\n{table}")),
        Vec::<usize>::new()
    );
    assert_eq!(tables_without_command("## Knobs\n\n| name | meaning |\n| --- | --- |\n| a | b |\n"), Vec::<usize>::new());
    let measured = |name: &str| name.ends_with("performance.md") || name.contains("repro");
    for (name, text) in pages().into_iter().filter(|(name, _)| measured(name)) {
        assert_eq!(
            tables_without_command(&text),
            Vec::<usize>::new(),
            "{name}: lines of tables without a command in their section"
        );
    }
}

/// Folders below one that hold source files of Rust, from the root of the repository.
fn folders_of_modules(folder: &Path, found: &mut Vec<String>) {
    let inside = entries(folder);
    if inside.iter().any(|path| path.extension().is_some_and(|e| e == "rs")) {
        let folder = folder.strip_prefix(root()).expect("below the root");
        found.push(folder.display().to_string());
    }
    inside.iter().filter(|path| path.is_dir()).for_each(|path| folders_of_modules(path, found));
}

#[test]
fn the_map_names_every_folder_of_modules() {
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("is there");
    let mut folders = Vec::new();
    for source in [
        "dsl/src",
        "dsl/macros/src",
        "codegen/src",
        "templates/src",
        "runtime/src",
        "runtime/cli/src",
        "emulator/src",
        "tests/src",
    ] {
        folders_of_modules(&root().join(source), &mut folders);
    }
    assert!(folders.len() > 30 && folders.iter().any(|f| f == "codegen/src/plan/verify"), "{folders:?}");
    let missing: Vec<&String> = folders.iter().filter(|folder| !map.contains(&format!("`{folder}`"))).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md, \"Folders of modules\", has no row for {missing:?}");
}

/// Names of modules of the analyses are in the table of their page.
#[test]
fn the_page_of_analyses_names_every_analysis() {
    // What has no answer of its own: printed forms, closed forms that all use, and tests.
    const SHARED: &[&str] = &["mod", "dependence_text", "expression", "index", "simplify"];
    let page = std::fs::read_to_string(root().join("docs/analyses.md")).expect("is there");
    let table: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
    for path in entries(&root().join("dsl/src/analysis")).into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
        let known = SHARED.contains(&&*name) || name.ends_with("_tests") || name == "samples";
        assert!(known || table.iter().any(|line| line.contains(&format!("`{name}`"))), "docs/analyses.md has no row for {name}");
    }
}
