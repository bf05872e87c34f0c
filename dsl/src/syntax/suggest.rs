//! "Did you mean": the known name nearest to an unknown one.

/// The nearest of `names` to `unknown`, if it is near enough to be a slip of the keyboard.
pub(super) fn nearest<'a>(unknown: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (unknown.chars().count() / 3).max(1);
    names
        .into_iter()
        .map(|name| (distance(unknown, name), name))
        .filter(|&(d, name)| d <= limit && d < name.chars().count())
        .min()
        .map(|(_, name)| name)
}

/// Number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_near_and_other_words_are_not() {
        let names = ["rowmax", "rowsum", "exp", "exp2", "q", "scale"];
        assert_eq!(nearest("row_max", names), Some("rowmax"));
        assert_eq!(nearest("epx", names), Some("exp"));
        assert_eq!(nearest("sclae", names), Some("scale"));
        assert_eq!(nearest("softmax", names), None);
        assert_eq!(nearest("k", names), None);
    }
}
