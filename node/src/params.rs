//! Parameters of the node (rule B6). Pure: texts in, [`Parameters`] and warnings out.
//!
//! Owner: bring-up reads the sources once and hands the result down; nobody reads them again.
//! Sources, weakest first: defaults, `/esp/hamlet/parameters.json`, fw_cfg `opt/hamlet/parameters.json`,
//! single keys `hamlet.<key>=<value>` on the kernel command line. A file holds one JSON object, nested
//! (`{"network": {"address": …}}`) or with dotted keys (`{"network.address": …}`).
//! Invariants: an unknown key is a warning that names the nearest known one, a wrong value is an error
//! that names key and source; the dashboard's token is refused on the command line, which every pod can
//! read.
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use logtree::{Dn, Level};

use crate::disk::DiskRef;
use crate::nearest::nearest;

/// Largest parameter file that is read.
pub const MAX_FILE_BYTES: usize = 1 << 20;

const KEYS: &[&str] = &[
    "node_name",
    "run",
    "root_disk",
    "data_disk",
    "log",
    "consoles",
    "dashboard.listen",
    "dashboard.token",
    "fatal",
    "shutdown_budget_s",
    "network.address",
    "network.gateway",
    #[cfg(feature = "faults")]
    "test_root",
];

/// What the node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunMode {
    /// Storage and a whole Kubernetes node.
    Cluster,
    /// Storage without Kubernetes, for tests of storage.
    Storage,
}

/// How the machine ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndAction {
    /// Start again.
    Reboot,
    /// Switch the machine off.
    PowerOff,
    /// Stop the processor, leave the power on.
    Halt,
}

impl EndAction {
    /// Its word in parameters, records and markers.
    pub fn as_str(self) -> &'static str {
        match self {
            EndAction::Reboot => "reboot",
            EndAction::PowerOff => "poweroff",
            EndAction::Halt => "halt",
        }
    }
}

/// What the root service does in the images that test boot outcomes (rule F5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TestRoot {
    /// The ordinary root.
    #[default]
    None,
    /// A root that succeeds at once.
    Success,
    /// A root that returns an error.
    Error,
    /// A root that panics with a payload that is no text.
    Panic,
}

/// The static address of the node's first network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkParameters {
    /// IPv4 address of the node.
    pub address: Ipv4Addr,
    /// Prefix length of its network.
    pub prefix: u8,
    /// Default gateway.
    pub gateway: Option<Ipv4Addr>,
}

/// All parameters, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// Name of the node: hostname, Kubernetes node name.
    pub node_name: String,
    /// What runs.
    pub run: RunMode,
    /// The disk with the read-only root.
    pub root_disk: DiskRef,
    /// The disk with the node's data.
    pub data_disk: DiskRef,
    /// Log levels by subtree.
    pub log: Vec<(Dn, Level)>,
    /// Consoles beside those of the kernel's own command line; empty: the default ones.
    pub consoles: Vec<String>,
    /// Where the dashboard listens.
    pub dashboard_listen: SocketAddr,
    /// The dashboard's token; made at each boot if none.
    pub dashboard_token: Option<String>,
    /// What follows a fatal error.
    pub fatal: EndAction,
    /// Longest orderly shutdown.
    pub shutdown_budget: Duration,
    /// Static network settings.
    pub network: NetworkParameters,
    /// Test images only.
    pub test_root: TestRoot,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            node_name: "hamlet-0".to_owned(),
            run: RunMode::Cluster,
            root_disk: DiskRef::Serial("hamlet-root".to_owned()),
            data_disk: DiskRef::Serial("hamlet-data".to_owned()),
            log: Vec::new(),
            consoles: Vec::new(),
            dashboard_listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7840)),
            dashboard_token: None,
            fatal: EndAction::Reboot,
            shutdown_budget: Duration::from_secs(120),
            // The addresses of QEMU's user network.
            network: NetworkParameters {
                address: Ipv4Addr::new(10, 0, 2, 15),
                prefix: 24,
                gateway: Some(Ipv4Addr::new(10, 0, 2, 2)),
            },
            test_root: TestRoot::None,
        }
    }
}

/// Where a value came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// `/esp/hamlet/parameters.json`.
    Esp,
    /// QEMU's fw_cfg, `opt/hamlet/parameters.json`.
    FwCfg,
    /// The kernel command line.
    CommandLine,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Esp => "/esp/hamlet/parameters.json",
            Source::FwCfg => "fw_cfg opt/hamlet/parameters.json",
            Source::CommandLine => "the kernel command line",
        })
    }
}

/// The keys and values of one source, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Where they were given.
    pub source: Source,
    /// Dotted key and text of the value.
    pub values: Vec<(String, String)>,
}

/// A key nobody knows; the boot goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownKey {
    /// Where it was given.
    pub source: Source,
    /// The key.
    pub key: String,
    /// What was probably meant.
    pub nearest: Option<&'static str>,
}

impl fmt::Display for UnknownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown parameter {} in {}", self.key, self.source)?;
        match self.nearest {
            Some(n) => write!(f, "; the nearest known one is {n}"),
            None => Ok(()),
        }
    }
}

/// A source or value that cannot be used; fatal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// The file is not one JSON object.
    #[error("{from} is not a JSON object: {text}")]
    Json {
        /// Which source.
        from: Source,
        /// What the parser says.
        text: String,
    },
    /// The file is too long.
    #[error("{from} has more than {MAX_FILE_BYTES} bytes")]
    TooLong {
        /// Which source.
        from: Source,
    },
    /// A value does not fit its key.
    #[error("parameter {key} in {from} cannot be {value:?}: expected {expected}")]
    Value {
        /// Which source.
        from: Source,
        /// Which key.
        key: String,
        /// What was given.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A secret where everybody can read it.
    #[error("parameter {key} is refused on the kernel command line, which every pod can read")]
    Secret {
        /// Which key.
        key: String,
    },
}

/// The `hamlet.<key>=<value>` words of a kernel command line. Quotes around a value are removed.
pub fn from_command_line(line: &str) -> Given {
    let values = line
        .split_ascii_whitespace()
        .filter_map(|word| word.trim_matches('"').strip_prefix("hamlet."))
        .map(|word| {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            (key.to_owned(), value.trim_matches('"').to_owned())
        })
        .collect();
    Given { source: Source::CommandLine, values }
}

/// The values of a parameter file.
///
/// # Errors
/// The text is too long or no JSON object of texts, numbers, lists and objects.
pub fn from_json(source: Source, bytes: &[u8]) -> Result<Given, ParameterError> {
    if bytes.len() > MAX_FILE_BYTES {
        return Err(ParameterError::TooLong { from: source });
    }
    let root: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(bytes)
        .map_err(|e| ParameterError::Json { from: source, text: e.to_string() })?;
    let mut values = Vec::new();
    for (key, value) in root {
        flatten(source, key, value, &mut values)?;
    }
    Ok(Given { source, values })
}

fn flatten(
    source: Source,
    key: String,
    value: serde_json::Value,
    into: &mut Vec<(String, String)>,
) -> Result<(), ParameterError> {
    use serde_json::Value;
    match value {
        Value::Object(map) => {
            for (k, v) in map {
                flatten(source, format!("{key}.{k}"), v, into)?;
            }
            return Ok(());
        }
        Value::String(text) => into.push((key, text)),
        Value::Number(n) => into.push((key, n.to_string())),
        Value::Array(list) if list.iter().all(Value::is_string) => {
            let texts: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
            into.push((key, texts.join(",")));
        }
        other @ (Value::Null | Value::Bool(_) | Value::Array(_)) => {
            return Err(ParameterError::Value {
                from: source,
                key,
                value: other.to_string(),
                expected: "a text, a number or a list of texts",
            });
        }
    }
    Ok(())
}

/// Applies the sources, weakest first, to the defaults.
///
/// # Errors
/// The first value that does not fit its key.
pub fn resolve(given: &[Given]) -> Result<(Parameters, Vec<UnknownKey>), ParameterError> {
    let mut parameters = Parameters::default();
    let mut unknown = Vec::new();
    for g in given {
        for (key, value) in &g.values {
            if !KEYS.contains(&key.as_str()) {
                let nearest = nearest(key, KEYS);
                unknown.push(UnknownKey { source: g.source, key: key.clone(), nearest });
                continue;
            }
            if key == "dashboard.token" && g.source == Source::CommandLine {
                return Err(ParameterError::Secret { key: key.clone() });
            }
            set(&mut parameters, key, value).map_err(|expected| ParameterError::Value {
                from: g.source,
                key: key.clone(),
                value: value.clone(),
                expected,
            })?;
        }
    }
    Ok((parameters, unknown))
}

/// Sets one known key; the error says what is allowed.
fn set(p: &mut Parameters, key: &str, value: &str) -> Result<(), &'static str> {
    match key {
        "node_name" => p.node_name = node_name(value)?,
        "run" => {
            p.run = match value {
                "cluster" => RunMode::Cluster,
                "storage" => RunMode::Storage,
                _ => return Err("cluster or storage"),
            }
        }
        "root_disk" => p.root_disk = disk(value)?,
        "data_disk" => p.data_disk = disk(value)?,
        "log" => p.log = log_levels(value)?,
        "consoles" => p.consoles = consoles(value)?,
        "dashboard.listen" => {
            p.dashboard_listen = value.parse().map_err(|_| "an address and port")?;
        }
        "dashboard.token" => p.dashboard_token = Some(token(value)?),
        "fatal" => {
            p.fatal = match value {
                "reboot" => EndAction::Reboot,
                "poweroff" => EndAction::PowerOff,
                "halt" => EndAction::Halt,
                _ => return Err("reboot, poweroff or halt"),
            }
        }
        "shutdown_budget_s" => {
            let seconds: u64 = value.parse().map_err(|_| "seconds from 1 to 3600")?;
            if !(1..=3600).contains(&seconds) {
                return Err("seconds from 1 to 3600");
            }
            p.shutdown_budget = Duration::from_secs(seconds);
        }
        "network.address" => (p.network.address, p.network.prefix) = address(value)?,
        "network.gateway" => {
            p.network.gateway = match value {
                "" | "none" => None,
                _ => Some(value.parse().map_err(|_| "an IPv4 address or none")?),
            }
        }
        "test_root" => {
            p.test_root = match value {
                "success" => TestRoot::Success,
                "error" => TestRoot::Error,
                "panic" => TestRoot::Panic,
                _ => return Err("success, error or panic"),
            }
        }
        _ => return Err("a known key"),
    }
    Ok(())
}

/// RFC 1123 label, as Kubernetes wants of a node name without dots.
fn node_name(value: &str) -> Result<String, &'static str> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let fits = (1..=63).contains(&value.len())
        && value.bytes().all(|b| inner(b) || b == b'-')
        && !value.starts_with('-')
        && !value.ends_with('-');
    if fits { Ok(value.to_owned()) } else { Err("1 to 63 of a-z, 0-9 and inner -") }
}

fn disk(value: &str) -> Result<DiskRef, &'static str> {
    DiskRef::parse(value).ok_or("serial:X, partlabel:X, uuid:X or a path below /dev")
}

fn log_levels(value: &str) -> Result<Vec<(Dn, Level)>, &'static str> {
    const EXPECTED: &str = "dn=level pairs, separated by commas";
    let pair = |text: &str| {
        let (dn, level) = text.split_once('=').ok_or(EXPECTED)?;
        let dn = Dn::new(dn).map_err(|_| EXPECTED)?;
        Ok((dn, level.parse().map_err(|_| EXPECTED)?))
    };
    value.split(',').filter(|t| !t.is_empty()).map(pair).collect()
}

fn consoles(value: &str) -> Result<Vec<String>, &'static str> {
    let fits = |t: &str| t.bytes().all(|b| b.is_ascii_alphanumeric()) && !t.is_empty();
    let names: Vec<&str> = value.split(',').map(|t| t.trim_start_matches("/dev/")).collect();
    if names.iter().all(|t| fits(t)) {
        Ok(names.into_iter().map(str::to_owned).collect())
    } else {
        Err("names of terminals, such as tty0,ttyS0")
    }
}

fn token(value: &str) -> Result<String, &'static str> {
    let fits = (16..=256).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_graphic());
    if fits { Ok(value.to_owned()) } else { Err("16 to 256 printable characters") }
}

fn address(value: &str) -> Result<(Ipv4Addr, u8), &'static str> {
    const EXPECTED: &str = "an IPv4 address with prefix length, such as 10.0.2.15/24";
    let (address, prefix) = value.split_once('/').ok_or(EXPECTED)?;
    let prefix: u8 = prefix.parse().map_err(|_| EXPECTED)?;
    if prefix > 32 {
        return Err(EXPECTED);
    }
    Ok((address.parse().map_err(|_| EXPECTED)?, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Result<(Parameters, Vec<UnknownKey>), ParameterError> {
        resolve(&[from_command_line(text)])
    }

    #[test]
    fn b6_without_any_source_the_defaults_hold() {
        let (p, unknown) = line("console=ttyS0 quiet hamletx.run=1").unwrap();
        assert_eq!(p, Parameters::default());
        assert_eq!(unknown, []);
    }

    #[test]
    fn b6_the_command_line_beats_fw_cfg_which_beats_the_esp() {
        let esp = from_json(Source::Esp, br#"{"node_name": "a", "fatal": "halt"}"#).unwrap();
        let fw = from_json(
            Source::FwCfg,
            br#"{"node_name": "b", "network": {"address": "10.1.0.2/16"}, "shutdown_budget_s": 9}"#,
        )
        .unwrap();
        let cmd = from_command_line("hamlet.node_name=c \"hamlet.run=storage\"");
        let (p, unknown) = resolve(&[esp, fw, cmd]).unwrap();
        assert_eq!(unknown, []);
        assert_eq!(p.node_name, "c");
        assert_eq!(p.run, RunMode::Storage);
        assert_eq!(p.fatal, EndAction::Halt);
        assert_eq!((p.network.address, p.network.prefix), (Ipv4Addr::new(10, 1, 0, 2), 16));
        assert_eq!(p.shutdown_budget, Duration::from_secs(9));
    }

    #[test]
    fn b6_an_unknown_key_is_a_warning_with_the_nearest_known_one() {
        let (p, unknown) = line("hamlet.data_dsk=serial:x").unwrap();
        assert_eq!(p, Parameters::default());
        assert_eq!(
            unknown[0].to_string(),
            "unknown parameter data_dsk in the kernel command line; the nearest known one is data_disk"
        );
    }

    #[test]
    fn b6_a_wrong_value_names_key_source_and_what_is_allowed() {
        for (text, key) in [
            ("hamlet.run=everything", "run"),
            ("hamlet.node_name=Big", "node_name"),
            ("hamlet.node_name=-x", "node_name"),
            ("hamlet.network.address=10.0.2.15", "network.address"),
            ("hamlet.network.address=10.0.2.15/33", "network.address"),
            ("hamlet.shutdown_budget_s=0", "shutdown_budget_s"),
            ("hamlet.log=root", "log"),
            ("hamlet.data_disk=serial:", "data_disk"),
            ("hamlet.consoles=../x", "consoles"),
            ("hamlet.dashboard.listen=7840", "dashboard.listen"),
        ] {
            let error = line(text).unwrap_err().to_string();
            assert!(
                error.contains(&format!("parameter {key} in the kernel command line")),
                "{error}"
            );
        }
    }

    #[test]
    fn b6_the_token_is_refused_on_the_command_line_and_taken_from_a_file() {
        let refused = line("hamlet.dashboard.token=0123456789abcdef").unwrap_err();
        assert_eq!(refused, ParameterError::Secret { key: "dashboard.token".to_owned() });
        let fw = from_json(Source::FwCfg, br#"{"dashboard.token": "0123456789abcdef"}"#).unwrap();
        let (p, _) = resolve(&[fw]).unwrap();
        assert_eq!(p.dashboard_token.as_deref(), Some("0123456789abcdef"));
    }

    #[test]
    fn b6_a_file_that_is_too_long_or_no_object_is_an_error() {
        let long = vec![b' '; MAX_FILE_BYTES + 1];
        let from = Source::Esp;
        assert_eq!(from_json(from, &long), Err(ParameterError::TooLong { from }));
        assert!(from_json(from, b"[]").is_err());
        assert!(from_json(from, b"{\"run\": true}").is_err());
    }

    #[test]
    fn log_levels_consoles_and_gateway_are_read() {
        let (p, _) = line(
            "hamlet.log=root.storage=debug,=warning hamlet.consoles=/dev/ttyS1,tty0 \
             hamlet.network.gateway=none",
        )
        .unwrap();
        assert_eq!(p.log.len(), 2);
        assert_eq!(p.log[0].0.to_string(), "root.storage");
        assert_eq!(p.consoles, ["ttyS1", "tty0"]);
        assert_eq!(p.network.gateway, None);
    }
}
