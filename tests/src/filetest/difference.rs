//! The lines in which two texts differ.

/// Lines of `expected` alone with `-`, of `found` alone with `+`, common ones near them with a space.
pub(super) fn difference(expected: &str, found: &str) -> String {
    let (a, b): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    // Length of the longest common subsequence of the rests.
    let mut common = vec![vec![0u32; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] = if a[i] == b[j] { common[i + 1][j + 1] + 1 } else { common[i + 1][j].max(common[i][j + 1]) };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines: Vec<(char, &str)> = Vec::new();
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            lines.push((' ', a[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || (i < a.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(('-', a[i]));
            i += 1;
        } else {
            lines.push(('+', b[j]));
            j += 1;
        }
    }
    let changed: Vec<usize> = (0..lines.len()).filter(|&k| lines[k].0 != ' ').collect();
    let near = |k: usize| changed.iter().any(|&c| c.abs_diff(k) <= 2);
    let shown = lines.iter().enumerate().filter(|(k, _)| near(*k)).map(|(_, (sign, line))| format!("{sign} {line}\n"));
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn shows_what_changed() {
        assert_eq!(difference("a\nb\nc\nd\ne\n", "a\nx\nc\nd\ne\n"), "  a\n- b\n+ x\n  c\n  d\n");
    }
}
