//! The tree on a real directory.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::clock::{DAY, NO_END};

const NOW: i64 = 1_800_000_000;

struct Place {
    root: tempfile::TempDir,
    dir: Dir,
}

impl Place {
    fn new() -> Place {
        let root = tempfile::tempdir().unwrap();
        let dir = localstorage::testing::data_at(root.path()).unwrap().kubernetes.pki;
        Place { root, dir }
    }

    fn ensure(&self, now: i64) -> (Pki, Report) {
        let _keep = &self.root;
        Pki::ensure(&self.dir, request(), now).unwrap()
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        std::fs::read_dir(self.dir.full_path())
            .unwrap()
            .map(|e| e.unwrap())
            .map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap()))
            .collect()
    }

    fn put(&self, name: &str, content: &[u8]) {
        std::fs::write(self.dir.full_path().join(name), content).unwrap();
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.dir.full_path().join(name)).unwrap();
    }
}

fn request() -> Request {
    Request {
        node_name: "hamlet-0".to_owned(),
        node_ip: [10, 0, 2, 15].into(),
        service_ip: [10, 96, 0, 1].into(),
    }
}

fn issued(report: &Report) -> Vec<(&'static str, Reason)> {
    report.issued.iter().map(|i| (i.name, i.reason)).collect()
}

#[test]
fn an_empty_directory_gets_the_whole_tree_readable_by_root_only() {
    let place = Place::new();
    let (_, report) = place.ensure(NOW);
    assert_eq!(report.issued.len(), Authority::ALL.len() + Leaf::ALL.len());
    assert!(report.issued.iter().all(|i| i.reason == Reason::Missing));
    let files = place.files();
    // A certificate and a key each, and both halves of the service accounts' key.
    assert_eq!(files.len(), 2 * report.issued.len() + 2);
    for name in files.keys() {
        let meta = std::fs::metadata(place.dir.full_path().join(name)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o7777, 0o600, "{name}");
    }
}

#[test]
fn a_second_start_changes_no_byte() {
    let place = Place::new();
    place.ensure(NOW);
    let before = place.files();
    let (_, report) = place.ensure(NOW + 30 * DAY);
    assert_eq!(issued(&report), []);
    assert_eq!(place.files(), before);
    assert_eq!(report.expiries.len(), Authority::ALL.len() + Leaf::ALL.len());
    assert!(report.expiries.is_sorted());
}

#[test]
fn a_new_address_gives_new_certificates_to_those_who_name_it_only() {
    let place = Place::new();
    place.ensure(NOW);
    let moved = Request { node_ip: [10, 0, 2, 16].into(), ..request() };
    let (_, report) = Pki::ensure(&place.dir, moved, NOW).unwrap();
    assert_eq!(
        issued(&report),
        [("apiserver", Reason::NamesChanged), ("kubelet-serving", Reason::NamesChanged)]
    );
}

#[test]
fn a_new_name_gives_a_new_node_identity() {
    let place = Place::new();
    place.ensure(NOW);
    let renamed = Request { node_name: "other".to_owned(), ..request() };
    let (_, report) = Pki::ensure(&place.dir, renamed, NOW).unwrap();
    assert!(issued(&report).contains(&("kubelet", Reason::SubjectChanged)));
}

#[test]
fn leaves_near_their_end_are_issued_anew_and_authorities_stay() {
    let place = Place::new();
    place.ensure(NOW);
    let authorities = [place.files()["ca.crt"].clone(), place.files()["etcd-ca.crt"].clone()];
    let (_, report) = place.ensure(NOW + 300 * DAY);
    assert_eq!(report.issued.len(), Leaf::ALL.len());
    assert!(report.issued.iter().all(|i| i.reason == Reason::Ending));
    assert_eq!(
        [place.files()["ca.crt"].clone(), place.files()["etcd-ca.crt"].clone()],
        authorities
    );
}

#[test]
fn a_running_node_renews_by_refresh_and_old_credentials_stay_trusted() {
    let place = Place::new();
    let (pki, _) = place.ensure(NOW);
    // Ten years on, the authority is renewed with the same key, so its leaves stay signed by us.
    let report = pki.refresh(NOW + 3000 * DAY).unwrap();
    assert!(issued(&report).contains(&("ca", Reason::Ending)));
    let again = pki.refresh(NOW + 3000 * DAY).unwrap();
    assert_eq!(issued(&again), []);
}

#[test]
fn a_damaged_leaf_is_replaced_whatever_is_in_its_files() {
    let garbage: [&[u8]; 4] = [b"", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nxx", b"hello\n"];
    for bytes in garbage {
        for name in ["kubelet.crt", "kubelet.key"] {
            let place = Place::new();
            place.ensure(NOW);
            place.put(name, bytes);
            let (_, report) = place.ensure(NOW);
            assert_eq!(issued(&report), [("kubelet", Reason::Unreadable)], "{name} {bytes:?}");
            assert_eq!(issued(&place.ensure(NOW).1), []);
        }
    }
}

#[test]
fn a_key_that_does_not_fit_its_certificate_is_noticed() {
    let place = Place::new();
    place.ensure(NOW);
    let other = place.files()["scheduler.key"].clone();
    place.put("kubelet.key", &other);
    assert_eq!(issued(&place.ensure(NOW).1), [("kubelet", Reason::KeyMismatch)]);
}

#[test]
fn a_certificate_of_the_other_authority_is_not_ours() {
    let (here, there) = (Place::new(), Place::new());
    here.ensure(NOW);
    there.ensure(NOW);
    for name in ["admin.crt", "admin.key"] {
        here.put(name, &there.files()[name]);
    }
    assert_eq!(issued(&here.ensure(NOW).1), [("admin", Reason::ForeignIssuer)]);
}

#[test]
fn a_damaged_trusted_key_is_refused_by_name_and_nothing_is_replaced() {
    for name in ["ca.key", "etcd-ca.key", "service-account.key"] {
        let place = Place::new();
        place.ensure(NOW);
        place.put(name, b"not a key");
        let before = place.files();
        let error = Pki::ensure(&place.dir, request(), NOW).err().unwrap();
        assert!(matches!(&error, PkiError::TrustedKeyUnreadable { path } if path.ends_with(name)));
        assert_eq!(place.files(), before);
    }
}

#[test]
fn the_public_half_of_the_service_accounts_follows_the_private_one() {
    let place = Place::new();
    place.ensure(NOW);
    let right = place.files()["service-account.pub"].clone();
    assert!(right.starts_with(b"-----BEGIN PUBLIC KEY-----"));
    place.put("service-account.pub", b"something else");
    place.ensure(NOW);
    assert_eq!(place.files()["service-account.pub"], right);
}

#[test]
fn an_authority_whose_key_is_gone_is_refused() {
    let place = Place::new();
    place.ensure(NOW);
    place.remove("ca.key");
    let error = Pki::ensure(&place.dir, request(), NOW).err().unwrap();
    assert!(matches!(error, PkiError::TrustedKeyMissing { .. }));
}

#[test]
fn an_authority_whose_certificate_is_gone_gets_one_for_the_same_key() {
    let place = Place::new();
    place.ensure(NOW);
    place.remove("ca.crt");
    assert_eq!(issued(&place.ensure(NOW).1), [("ca", Reason::Missing)]);
}

#[test]
fn a_power_cut_between_any_two_files_is_completed() {
    let whole = Place::new();
    whole.ensure(NOW);
    let order: Vec<String> =
        ["ca.key", "etcd-ca.key", "service-account.key", "service-account.pub", "ca.crt"]
            .into_iter()
            .map(str::to_owned)
            .chain(["etcd-ca.crt".to_owned()])
            .chain(Leaf::ALL.iter().flat_map(|l| {
                [Store::key_name(l.file_stem()), Store::certificate_name(l.file_stem())]
            }))
            .collect();
    let files = whole.files();
    // Every cut among the trusted files, then a sample: one key without its certificate and
    // one pair more, over and over.
    for cut in (0..8).chain((8..=order.len()).step_by(7)) {
        let place = Place::new();
        for name in &order[..cut] {
            place.put(name, &files[name]);
        }
        place.ensure(NOW);
        assert_eq!(issued(&place.ensure(NOW).1), [], "cut after {cut}");
    }
}

#[test]
fn a_clock_before_2020_gives_a_working_tree_and_a_good_clock_replaces_it() {
    let place = Place::new();
    let (_, report) = place.ensure(1000);
    assert!(report.expiries.iter().all(|e| e.not_after == NO_END));
    assert_eq!(issued(&place.ensure(2000).1), []);
    let (_, report) = place.ensure(NOW);
    assert_eq!(report.issued.len(), Authority::ALL.len() + Leaf::ALL.len());
    assert!(report.issued.iter().all(|i| i.reason == Reason::Provisional));
    assert!(report.expiries.iter().all(|e| e.not_after < NO_END));
}

#[test]
fn certificates_say_what_was_wanted() {
    let place = Place::new();
    let (pki, _) = place.ensure(NOW);
    for leaf in Leaf::ALL {
        let (pem, key) = pki.leaf_pem(leaf).unwrap();
        let key = KeyPair::from_pem(&key).unwrap();
        let wanted = leaf.identity(&request());
        let found =
            parse::certificate(pem.as_bytes(), &key, pki.signing_key(wanted.authority)).unwrap();
        assert_eq!(judge::leaf(&found, &wanted, NOW), None, "{leaf:?}");
        for other in Authority::ALL.into_iter().filter(|a| *a != wanted.authority) {
            let found = parse::certificate(pem.as_bytes(), &key, pki.signing_key(other)).unwrap();
            assert!(!found.signed_by_us, "{leaf:?} by {other:?}");
        }
    }
}

#[test]
fn a_service_kubeconfig_holds_no_secret_and_a_personal_one_does() {
    let place = Place::new();
    let (pki, _) = place.ensure(NOW);
    let service = pki.service_kubeconfig(Leaf::Scheduler, "https://127.0.0.1:6443");
    assert!(!service.contains("-data:"));
    assert!(service.contains("scheduler.key"));
    let personal = pki.personal_kubeconfig(Leaf::Admin, "https://127.0.0.1:6443").unwrap();
    assert_eq!(personal.matches("-data: ").count(), 3);
}

#[test]
fn expiries_are_told_in_utc() {
    let e = Expiry { not_after: 1_831_536_000, name: "kubelet" };
    assert_eq!(e.to_string(), "certificate kubelet ends at 2028-01-15T08:00:00Z");
}
