//! PURE: whether an SPDX licence expression can be met with permissive licences.

/// Licences that may be linked into Hamlet.
const PERMISSIVE: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether `expression` allows a choice of permissive licences only.
pub(super) fn is_permissive(expression: &str) -> bool {
    // Old crates write a slash for OR.
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut rest = words.as_slice();
    any(&mut rest) == Some(true) && rest.is_empty()
}

/// Each level answers `None` when the expression ends where a licence belongs.
fn any(words: &mut &[&str]) -> Option<bool> {
    let mut answer = all(words)?;
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        answer |= all(words)?;
    }
    Some(answer)
}

fn all(words: &mut &[&str]) -> Option<bool> {
    let mut answer = one(words)?;
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        answer &= one(words)?;
    }
    Some(answer)
}

fn one(words: &mut &[&str]) -> Option<bool> {
    let [first, rest @ ..] = *words else { return None };
    *words = rest;
    if *first == "(" {
        let answer = any(words);
        let [")", rest @ ..] = *words else { return None };
        *words = rest;
        return answer;
    }
    let mut name = (*first).to_owned();
    if let ["WITH", exception, rest @ ..] = *words {
        name = format!("{name} WITH {exception}");
        *words = rest;
    }
    Some(PERMISSIVE.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_permissive_choice_is_enough_and_all_joint_terms_are_needed() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            assert!(is_permissive(good), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "MIT OR", "(MIT", "", "MPL-2.0"] {
            assert!(!is_permissive(bad), "{bad}");
        }
    }
}
