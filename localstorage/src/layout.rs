//! The tree of the node, declared once: names, kinds, modes, media. Pure.
//!
//! Invariant (tested): names are single path components, unique among their siblings.
//! The typed directories of `root` and `data` are built from these constants only.

/// Where a subtree is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// The data disk (XFS).
    Data,
    /// Lost at reboot.
    Memory,
    /// The EFI system partition.
    Esp,
}

/// Who fixes the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FixedBy {
    /// We; it may change with a migration.
    Hamlet,
    /// The first provisioner of this layout (upgrades keep data).
    Origin,
    /// Some other program looks exactly there.
    Upstream,
}

/// A declared directory.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    /// One path component.
    pub name: &'static str,
    /// Permission bits.
    pub mode: u32,
    /// Who fixes the name.
    pub fixed_by: FixedBy,
    /// Declared sub-directories.
    pub children: &'static [Node],
}

const fn dir(name: &'static str, children: &'static [Node]) -> Node {
    Node { name, mode: 0o700, fixed_by: FixedBy::Hamlet, children }
}

impl Node {
    const fn mode(mut self, mode: u32) -> Node {
        self.mode = mode;
        self
    }

    const fn fixed(mut self, by: FixedBy) -> Node {
        self.fixed_by = by;
        self
    }
}

/// What a medium holds.
#[derive(Debug, Clone, Copy)]
pub struct Tree {
    /// Mount point under the root.
    pub name: &'static str,
    /// Medium.
    pub medium: Medium,
    /// Top-level directories.
    pub children: &'static [Node],
}

/// `/data`. `volumes` and `kubernetes/kubelet` must be searchable by pods' processes;
/// below `kubelet` the kubelet sets its own modes.
pub const DATA: Tree = Tree {
    name: "data",
    medium: Medium::Data,
    children: &[
        dir("containerd", &[]).mode(0o711),
        dir("etcd", &[]),
        dir(
            "kubernetes",
            &[
                dir("pki", &[]),
                dir("log", &[]).mode(0o755),
                dir(
                    "kubelet",
                    &[
                        dir("pki", &[]).fixed(FixedBy::Upstream),
                        dir("seccomp", &[]).fixed(FixedBy::Upstream),
                        dir("device-plugins", &[]).fixed(FixedBy::Upstream),
                        dir("plugins", &[]).fixed(FixedBy::Upstream),
                        dir("plugins_registry", &[]).fixed(FixedBy::Upstream),
                        dir("pods", &[]).mode(0o755).fixed(FixedBy::Upstream),
                    ],
                )
                .mode(0o755),
            ],
        )
        .mode(0o755),
        dir("node", &[]),
        dir("volumes", &[]).mode(0o711).fixed(FixedBy::Origin),
        dir(
            "volume-state",
            &[
                dir("staging", &[]),
                dir("snapshots", &[]),
                dir("trash", &[]),
                dir("quarantine", &[]),
            ],
        ),
    ],
};

/// `/ephemeral`.
pub const EPHEMERAL: Tree = Tree {
    name: "ephemeral",
    medium: Medium::Memory,
    children: &[dir("containerd", &[]).mode(0o711), dir("consensus", &[])],
};

/// `/run`.
pub const RUN: Tree = Tree {
    name: "run",
    medium: Medium::Memory,
    children: &[
        dir("hamlet", &[]),
        dir("etc", &[]).mode(0o755),
        dir("containerd", &[]).mode(0o711).fixed(FixedBy::Upstream),
        dir("cni", &[dir("net.d", &[]).mode(0o755).fixed(FixedBy::Upstream)])
            .mode(0o755)
            .fixed(FixedBy::Upstream),
    ],
};

/// `/tmp`.
pub const TMP: Tree = Tree { name: "tmp", medium: Medium::Memory, children: &[] };

/// `/esp`.
pub const ESP: Tree = Tree { name: "esp", medium: Medium::Esp, children: &[] };

/// All of them.
pub const TREES: &[Tree] = &[DATA, EPHEMERAL, RUN, TMP, ESP];

/// Why a declaration is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeclarationError {
    /// Empty, `.`, `..`, or with a slash or NUL.
    #[error("{0:?} is not a single path component")]
    BadName(String),
    /// Two siblings have one name.
    #[error("{0:?} is declared twice")]
    Duplicate(String),
}

/// Checks one level of declarations and everything below it.
pub fn check(nodes: &[Node]) -> Result<(), DeclarationError> {
    for (i, n) in nodes.iter().enumerate() {
        check_name(n.name)?;
        if nodes.iter().take(i).any(|other| other.name == n.name) {
            return Err(DeclarationError::Duplicate(n.name.to_owned()));
        }
        check(n.children)?;
    }
    Ok(())
}

/// Whether `name` is a single path component.
pub fn check_name(name: &str) -> Result<(), DeclarationError> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        Err(DeclarationError::BadName(name.to_owned()))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l1_1_the_declared_tree_has_only_good_names() {
        for tree in TREES {
            assert_eq!(check_name(tree.name), Ok(()));
            assert_eq!(check(tree.children), Ok(()), "{}", tree.name);
        }
    }

    #[test]
    fn l1_1_bad_and_duplicate_names_are_rejected_at_any_depth() {
        const BAD: &[Node] = &[dir("a", &[dir("x/y", &[])])];
        const TWICE: &[Node] = &[dir("a", &[dir("x", &[]), dir("x", &[])])];
        assert_eq!(check(BAD), Err(DeclarationError::BadName("x/y".into())));
        assert_eq!(check(TWICE), Err(DeclarationError::Duplicate("x".into())));
        for bad in ["", ".", "..", "a/", "/", "a\0"] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
