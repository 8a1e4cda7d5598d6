//! Which service somebody means (rule C2). Pure.
//!
//! Must not know: where names come from.
use crate::nearest::nearest;

/// A name that names no service, or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotOne {
    /// None; the nearest known one.
    None {
        /// Perhaps meant.
        nearest: Option<String>,
    },
    /// Several.
    Several(Vec<String>),
}

/// The one known DN that `text` names, whole or by its last names.
///
/// # Errors
/// It names none or several.
pub fn resolve<'a>(text: &str, known: &[&'a str]) -> Result<&'a str, NotOne> {
    if let Some(whole) = known.iter().find(|d| **d == text) {
        return Ok(whole);
    }
    let tail = format!(".{text}");
    let named: Vec<&str> = known.iter().copied().filter(|d| d.ends_with(&tail)).collect();
    match named.as_slice() {
        [only] => Ok(only),
        [] => {
            // People mistype the last name: the path before it would only blur the comparison.
            let last = |dn: &&'a str| dn.rsplit('.').next().unwrap_or_default();
            let wanted = text.rsplit('.').next().unwrap_or_default();
            let lasts: Vec<&str> = known.iter().map(last).collect();
            let near = nearest(wanted, &lasts);
            let near = near.and_then(|n| known.iter().find(|d| last(d) == n));
            Err(NotOne::None { nearest: near.map(|d| (*d).to_owned()) })
        }
        several => Err(NotOne::Several(several.iter().map(|d| (*d).to_owned()).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 5] =
        ["init", "root.a", "root.a.b", "root.c.b", "root.kubernetes.worker.kubelet"];

    #[test]
    fn c2_a_dn_is_named_whole_or_by_a_unique_tail() {
        for (text, dn) in
            [("root.a", "root.a"), ("c.b", "root.c.b"), ("init", "init"), ("kubelet", KNOWN[4])]
        {
            assert_eq!(resolve(text, &KNOWN), Ok(dn));
        }
        let several = vec!["root.a.b".to_owned(), "root.c.b".to_owned()];
        assert_eq!(resolve("b", &KNOWN), Err(NotOne::Several(several)));
    }

    #[test]
    fn c3_an_unknown_name_is_answered_with_the_nearest() {
        for text in ["kublet", "worker.kublet", "root.x.kubelets"] {
            let nearest = Some(KNOWN[4].to_owned());
            assert_eq!(resolve(text, &KNOWN), Err(NotOne::None { nearest }), "{text}");
        }
        assert_eq!(resolve("x", &[]), Err(NotOne::None { nearest: None }));
    }
}
