//! The nearest known word to a mistyped one, for hints. Pure.
//!
//! Must not know: where the words come from.

/// The known word with the smallest edit distance to `word`; the first of equals.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    known.iter().copied().min_by_key(|k| distance(word, k))
}

/// Levenshtein distance by characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, cb) in row.iter_mut().skip(1).zip(&b) {
            let above = *cell;
            let cost = usize::from(ca != *cb);
            left = (diagonal + cost).min(above + 1).min(left + 1);
            diagonal = above;
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_inserted_deleted_and_changed_characters() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
        assert_eq!(distance("data_dsk", "data_disk"), 1);
        assert_eq!(distance("ä", "a"), 1);
    }

    #[test]
    fn the_nearest_word_wins_and_the_first_of_equals() {
        assert_eq!(nearest("nodename", &["run", "node_name", "log"]), Some("node_name"));
        assert_eq!(nearest("x", &["ab", "cd"]), Some("ab"));
        assert_eq!(nearest("x", &[]), None);
    }
}
