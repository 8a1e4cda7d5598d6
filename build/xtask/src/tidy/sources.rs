//! PURE: rules for one Rust file.

/// Most lines of a file, its tests not counted.
const MOST_LINES: usize = 600;

/// The only folder with `unsafe` code.
const UNSAFE_FOLDER: &str = "localstorage/sys/";

/// Names of modules that decide and do nothing else.
const PURE_MODULES: &[&str] = &["id", "plan", "state", "tree"];

/// What a pure module must not mention.
const IMPURE: &[&str] = &[
    "tokio::",
    "std::fs",
    "std::net",
    "std::process",
    "rustix::",
    "Instant::now",
    "SystemTime::now",
];

/// Modules that `text` declares for tests only, as paths without `.rs`.
pub(super) fn test_modules(path: &str, text: &str) -> Vec<String> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let folder = match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => format!("{folder}/{}", name.trim_end_matches(".rs")),
    };
    let lines: Vec<&str> = text.lines().collect();
    let declared = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]").filter_map(|pair| {
        let module = pair[1].trim_start_matches("pub(crate) ").strip_prefix("mod ")?;
        Some(format!("{folder}/{}", module.strip_suffix(';')?))
    });
    declared.collect()
}

/// Findings in the file at `path` (relative to the root), each with its line.
/// `is_test` says that it belongs to a module for tests only.
pub(super) fn check(path: &str, text: &str, is_test: bool) -> Vec<String> {
    let mut findings = Vec::new();
    let mut find = |line: usize, what: &str| findings.push(format!("{path}:{line}: {what}"));
    if !starts_with_module_docs(text) {
        find(1, "the module has no `//!` that says what it is for");
    }
    let product = if is_test { 0 } else { product_lines(path, text) };
    if product > MOST_LINES {
        find(MOST_LINES, &format!("{product} lines without tests; at most {MOST_LINES}"));
    }
    for (number, line) in text.lines().enumerate() {
        let number = number + 1;
        let code = line.split("//").next().unwrap_or_default();
        if !path.starts_with(UNSAFE_FOLDER) && is_unsafe(code) {
            find(number, &format!("unsafe code outside of {UNSAFE_FOLDER}"));
        }
        for word in [concat!("to", "do!("), concat!("unimplement", "ed!(")] {
            if code.contains(word) {
                find(number, &format!("{word}) is not an answer"));
            }
        }
        for word in [concat!("TO", "DO"), concat!("FIX", "ME")] {
            if line.contains(word) && !line.contains(&format!("{word}(#")) {
                find(number, &format!("{word} without an issue, as in {word}(#12)"));
            }
        }
        if number <= product && is_pure(path) {
            for word in IMPURE.iter().filter(|word| code.contains(**word)) {
                find(number, &format!("a pure module mentions {word}"));
            }
        }
    }
    findings
}

fn starts_with_module_docs(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.next().is_some_and(|line| line.starts_with("//! ") && line.len() > 8)
}

/// Lines before the file's own tests; none in files that are tests.
fn product_lines(path: &str, text: &str) -> usize {
    if path.contains("/tests/") || path.ends_with("/tests.rs") {
        return 0;
    }
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|pair| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    });
    tests.unwrap_or(lines.len())
}

/// Whether a line of code opens something unsafe; words in texts do not.
fn is_unsafe(code: &str) -> bool {
    let opened = ["{", "fn ", "impl ", "impl<", "trait ", "extern "];
    opened.iter().any(|next| {
        let word = format!("{} {next}", "unsafe");
        code.trim_start().starts_with(&word) || code.contains(&format!("= {word}"))
    })
}

fn is_pure(path: &str) -> bool {
    let Some((_, inside)) = path.rsplit_once("src/") else { return false };
    inside.split('/').any(|part| PURE_MODULES.contains(&part.trim_end_matches(".rs")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_without_docs_is_found_and_one_with_docs_is_not() {
        assert_eq!(check("a/src/lib.rs", "fn a() {}\n", false).len(), 1);
        assert!(check("a/src/lib.rs", "//! What it is for.\nfn a() {}\n", false).is_empty());
    }

    #[test]
    fn tests_do_not_count_as_lines_of_a_file() {
        let long = format!("//! Docs of it.\n{}", "fn a() {}\n".repeat(601));
        assert!(check("a/src/lib.rs", &long, false)[0].contains("at most 600"));
        let tested = format!("//! Docs of it.\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert!(check("a/src/lib.rs", &tested, false).is_empty());
        assert!(check("a/tests/long.rs", &long, false).is_empty());
    }

    #[test]
    fn a_module_declared_for_tests_only_counts_as_tests() {
        let parent = "//! Docs of it.\n#[cfg(test)]\nmod scenarios;\nmod product;\n";
        assert_eq!(test_modules("a/src/lib.rs", parent), ["a/src/scenarios"]);
        assert_eq!(test_modules("a/src/b.rs", parent), ["a/src/b/scenarios"]);
        let long = format!("//! Docs of it.\n{}", "fn a() {}\n".repeat(601));
        assert!(check("a/src/scenarios.rs", &long, true).is_empty());
    }

    #[test]
    fn unsafe_is_found_outside_of_its_crate_only() {
        let text = concat!("//! Docs of it.\nuns", "afe { a() }\n");
        assert_eq!(
            check("node/src/a.rs", text, false),
            [format!("node/src/a.rs:2: unsafe code outside of {UNSAFE_FOLDER}")]
        );
        assert!(check("localstorage/sys/src/a.rs", text, false).is_empty());
        assert!(check("node/src/a.rs", "//! No unsafe { code } here.\n", false).is_empty());
    }

    #[test]
    fn a_pure_module_names_no_clock_and_no_runtime_but_its_tests_may() {
        let text = "//! Docs of it.\nfn a() { tokio::time::now() }\n";
        assert_eq!(check("a/src/plan.rs", text, false).len(), 1);
        assert_eq!(check("a/src/tree/step.rs", text, false).len(), 1);
        assert!(check("a/src/driver.rs", text, false).is_empty());
        let tested = "//! Docs of it.\n#[cfg(test)]\nmod tests {\n tokio::a();\n}\n";
        assert!(check("a/src/plan.rs", tested, false).is_empty());
    }

    #[test]
    fn open_ends_need_an_issue() {
        let open = concat!("//! Docs of it.\n// TO", "DO: later\n");
        assert_eq!(check("a/src/a.rs", open, false).len(), 1);
        let issue = concat!("//! Docs of it.\n// TO", "DO(#7): later\n");
        assert!(check("a/src/a.rs", issue, false).is_empty());
    }
}
