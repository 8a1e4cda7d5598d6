//! The command line of `hamlet` as a command (rule C1). Pure.
//!
//! Must not know: how a command works.
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use jiff::Timestamp;
use logtree::{Dn, Level};

/// Where the control socket of this machine's own node is.
pub const DEFAULT_ENDPOINT: &str = "unix:/run/hamlet/control.sock";

const ABOUT: &str = "Looks into a Hamlet node: its services, logs, volumes and health";

const AFTER: &str = "\
Endpoints:
  unix:/run/hamlet/control.sock  on the node itself, as root; everything is allowed
  http://host:7840               over the network, with --token; read only
  host:/path/of/the/socket       from the machine that runs the node's virtual machine, by the socket
                                 of its serial port hamlet.host; everything is allowed

A DN may be given by its last names if they name one service: kubelet.

Exit status: 0 yes, 1 no or refused, 2 usage, 3 the node cannot be reached, 4 no such service or several,
130 interrupted.";

/// `hamlet …`
#[derive(Debug, Parser)]
#[command(name = "hamlet", version, about = ABOUT, after_help = AFTER)]
pub struct Cli {
    /// What holds for every command.
    #[command(flatten)]
    pub common: Common,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// What holds for every command.
#[derive(Debug, Args)]
pub struct Common {
    /// Where the node is reached.
    #[arg(long, global = true, env = "HAMLET_ENDPOINT", default_value = DEFAULT_ENDPOINT)]
    pub endpoint: String,
    /// Token of the dashboard, for http endpoints.
    #[arg(long, global = true, env = "HAMLET_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// For people or for programs.
    #[arg(short, long, global = true, value_enum, default_value = "text")]
    pub output: Output,
}

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For programs; logs as one object a line.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Draw the tree of services with their state.
    Tree {
        /// Only this service and what is below it.
        dn: Option<String>,
        /// Draw it again whenever it changes.
        #[arg(long)]
        watch: bool,
    },
    /// Show the log.
    Logs(LogArgs),
    /// Show what the processes use.
    Top {
        /// Once, also on a terminal.
        #[arg(long)]
        once: bool,
    },
    /// Show the last words of a service: why it died last, and what it had said.
    Crash {
        /// Whose.
        dn: String,
    },
    /// Tell how the node does, by sentence and exit status.
    Health {
        /// Wait until the node is ready.
        #[arg(long, value_enum, value_name = "WHAT")]
        wait: Option<WaitFor>,
        /// How long to wait.
        #[arg(long, default_value = "120s", value_parser = duration, requires = "wait")]
        timeout: Duration,
    },
    /// List the volumes.
    Volumes,
    /// Show the node itself.
    Node,
    /// Restart a service and its unit.
    Restart {
        /// Which.
        dn: String,
    },
    /// Set the log level of a service and all below it for a while.
    Level {
        /// `DN=LEVEL`; `all=LEVEL` for everything.
        #[arg(value_name = "DN=LEVEL", value_parser = assignment)]
        assignment: (String, Level),
        /// For how long; `boot` means until the next boot.
        #[arg(long = "for", default_value = "15m", value_parser = level_time)]
        time: Duration,
    },
    /// Restart the machine.
    Reboot(EndArgs),
    /// Switch the machine off.
    Poweroff(EndArgs),
    /// Write completions for a shell.
    Completions {
        /// Which shell.
        shell: Shell,
    },
}

/// What can be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WaitFor {
    /// Booted, and well enough to be used.
    Ready,
}

/// `hamlet logs …`
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Whose log; everything without.
    pub dn: Option<String>,
    /// Go on with new entries.
    #[arg(short, long)]
    pub follow: bool,
    /// Least level.
    #[arg(long, value_parser = level)]
    pub level: Option<Level>,
    /// Without the services below.
    #[arg(long)]
    pub exact: bool,
    /// Only raw lines.
    #[arg(long, conflicts_with = "leveled")]
    pub raw: bool,
    /// Only lines with a level.
    #[arg(long)]
    pub leveled: bool,
    /// How many old entries; `all` for all that are kept [default: 200, all with --since].
    #[arg(short = 'n', long = "lines", value_parser = lines)]
    pub lines: Option<Lines>,
    /// Not older than this: `10m`, or a time such as 2026-11-21T17:20:00Z.
    #[arg(long, value_parser = since)]
    pub since: Option<Since>,
    /// Only entries with this text.
    #[arg(long)]
    pub grep: Option<String>,
    /// Short lines, as on the node's console.
    #[arg(long)]
    pub concise: bool,
}

/// How many old entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lines {
    /// All that are kept.
    All,
    /// The newest.
    Last(usize),
}

/// From when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// So long ago.
    Ago(Duration),
    /// At this time.
    At(Timestamp),
}

/// How to end the node.
#[derive(Debug, Args)]
pub struct EndArgs {
    /// Without stopping anything in order: sync and go.
    #[arg(long)]
    pub force: bool,
}

/// `90`, `90s`, `15m`, `2h`, `1d`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; write 90s, 15m, 2h or 1d");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..).unwrap_or_default() {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(unit).map(Duration::from_secs).ok_or_else(wrong)
}

fn level_time(text: &str) -> Result<Duration, String> {
    match text {
        "boot" => Ok(Duration::ZERO),
        _ => match duration(text)? {
            Duration::ZERO => {
                Err("a level holds for at least 1s, or until the next boot".to_owned())
            }
            time => Ok(time),
        },
    }
}

fn level(text: &str) -> Result<Level, String> {
    let all = Level::ALL.map(Level::as_str).join(", ");
    text.parse().map_err(|_| format!("there is no level {text:?}; allowed are {all}"))
}

fn assignment(text: &str) -> Result<(String, Level), String> {
    let (dn, word) = text.split_once('=').ok_or("write DN=LEVEL, for example kubelet=debug")?;
    let dn = if dn == "all" { "" } else { dn };
    Dn::new(dn).map_err(|e| e.to_string())?;
    Ok((dn.to_owned(), level(word)?))
}

fn lines(text: &str) -> Result<Lines, String> {
    match text {
        "all" => Ok(Lines::All),
        _ => text
            .parse()
            .map(Lines::Last)
            .map_err(|_| format!("{text:?} is neither a number nor all")),
    }
}

fn since(text: &str) -> Result<Since, String> {
    match text.parse() {
        Ok(at) => Ok(Since::At(at)),
        Err(_) => duration(text)
            .map(Since::Ago)
            .map_err(|_| format!("{text:?} is no time; write 10m, or 2026-11-21T17:20:00Z")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c1_times_are_numbers_with_a_unit_and_nothing_else() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("15m"), Ok(Duration::from_secs(900)));
        assert_eq!(duration("1d"), Ok(Duration::from_secs(86_400)));
        for bad in
            ["", "m", "-1s", "1w", "1 m", "1.5h", "99999999999999999999", "999999999999999999d"]
        {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(level_time("boot"), Ok(Duration::ZERO));
        assert!(level_time("0s").is_err());
    }

    #[test]
    fn c1_a_level_is_set_for_a_dn_or_for_all() {
        assert_eq!(assignment("kubelet=debug"), Ok(("kubelet".to_owned(), Level::Debug)));
        assert_eq!(assignment("all=warn"), Ok((String::new(), Level::Warning)));
        for bad in ["kubelet", "kubelet=loud", "Kubelet=debug", "a..b=info"] {
            assert!(assignment(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn c2_since_is_a_span_or_a_time() {
        assert_eq!(since("10m"), Ok(Since::Ago(Duration::from_secs(600))));
        assert_eq!(since("1970-01-01T00:00:00Z"), Ok(Since::At(Timestamp::UNIX_EPOCH)));
        assert!(since("yesterday").is_err());
        assert_eq!(lines("all"), Ok(Lines::All));
        assert!(lines("some").is_err());
    }

    #[test]
    fn c1_the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
