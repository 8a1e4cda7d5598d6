//! What leaves: the trash and its purge, staging that is given up, projects that become
//! free, the ballast. Blocking.
//!
//! Invariants: purging is resumable by construction, it removes whatever is left; an id is
//! free only when the kernel says that nothing uses it; nothing here reads a volume's content.
//!
//! Must not know: why something is deleted, or the registry.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::fd::AsFd;
use std::time::Duration;

use nodesys::{Limits, SysError, walk};
use rustix::fs::{AtFlags, RenameFlags};
use rustix::io::Errno;

use crate::disk::{Disk, StepError, component};

/// Given up when the registry finds no space, so that deletes work on a full disk.
const BALLAST: &str = "ballast";
const BALLAST_BYTES: u64 = 8 << 20;
/// How often and how long to wait for XFS to finish removed inodes in the background, which
/// it does not announce: 5, 10, … 320 ms.
const INACTIVATION_TRIES: u32 = 7;

impl Disk {
    /// Moves what an earlier attempt left to the trash and removes it there.
    pub(crate) fn clear_staging(&self, name: &CStr) -> Result<(), StepError> {
        let to = self.trash_name(name)?;
        let flags = RenameFlags::NOREPLACE;
        let (from, trash) = (&self.staging, &self.trash);
        rustix::fs::renameat_with(from, name, trash, &to, flags)
            .map_err(|e| StepError::Sys(SysError::new("renameat2", to.to_string_lossy(), e)))?;
        self.remove(&to)
    }

    /// A name in the trash that nothing has: `NAME.s<n>`.
    fn trash_name(&self, name: &CStr) -> Result<CString, StepError> {
        for n in 0_u64.. {
            let to = component(&format!("{}.s{n}", name.to_string_lossy()));
            match rustix::fs::statat(&self.trash, &to, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Ok(to),
                Ok(_) => {}
                Err(e) => {
                    let what = to.to_string_lossy();
                    return Err(StepError::Sys(SysError::new("fstatat", what, e)));
                }
            }
        }
        Err(StepError::Stopped)
    }

    /// D6: zero limits, nothing in use.
    pub(crate) fn free_project(&self, project: u32) -> Result<(), StepError> {
        if project == 0 {
            return Ok(());
        }
        self.set_limits(project, Limits::default())?;
        for n in 0..INACTIVATION_TRIES {
            let u = self.usage(project)?.unwrap_or_default();
            if u.used_bytes == 0 && u.used_inodes == 0 {
                return Ok(());
            }
            if n + 1 == INACTIVATION_TRIES || !self.go_on() {
                let (bytes, inodes) = (u.used_bytes, u.used_inodes);
                return Err(StepError::StillInUse { bytes, inodes });
            }
            // XFS finishes removed inodes in the background; asking for id 0 expedites it.
            self.seams.quota.unowned(self.volumes.as_fd()).map_err(StepError::Sys)?;
            std::thread::sleep(Duration::from_millis(5 << n));
        }
        Ok(())
    }

    /// D5 for the item `key`, and for parts of it that an interrupted purge has flattened.
    pub(crate) fn purge(&self, key: &str) -> Result<(), StepError> {
        let prefix = format!("{key}~").into_bytes();
        for name in walk::names(self.trash.as_fd()).map_err(StepError::Sys)? {
            if name.as_bytes().starts_with(&prefix) {
                self.remove(&name)?;
            }
        }
        self.remove(&component(key))
    }

    fn remove(&self, name: &CStr) -> Result<(), StepError> {
        let mut go_on = || self.go_on();
        let done = walk::remove_tree(self.trash.as_fd(), name, &mut go_on);
        if done.map_err(StepError::Sys)?.stopped { Err(StepError::Stopped) } else { Ok(()) }
    }

    /// Names of the trash items.
    pub(crate) fn trash_names(&self) -> Result<Vec<String>, StepError> {
        let names = walk::names(self.trash.as_fd()).map_err(StepError::Sys)?;
        Ok(names.into_iter().filter_map(|n| n.into_string().ok()).collect())
    }

    /// Moves everything in `staging` that is not in `keep` to the trash; how many.
    pub(crate) fn sweep_staging(&self, keep: &dyn Fn(&str) -> bool) -> Result<u64, StepError> {
        let mut n = 0;
        for name in walk::names(self.staging.as_fd()).map_err(StepError::Sys)? {
            if !name.to_str().is_ok_and(keep) {
                self.clear_staging(&name)?;
                n += 1;
            }
        }
        Ok(n)
    }

    /// Makes the ballast if it is missing. No space for it is no error.
    pub(crate) fn make_ballast(&self) -> Result<(), StepError> {
        let path = self.state_path.join(BALLAST);
        let fail = |e| StepError::File(path.display().to_string(), e);
        if path.exists() {
            return Ok(());
        }
        let file = fs::File::create_new(&path).map_err(fail)?;
        if let Err(e) = self.seams.extents.preallocate(file.as_fd(), BALLAST_BYTES) {
            fs::remove_file(&path).map_err(fail)?;
            return if e.is(Errno::NOSPC) { Ok(()) } else { Err(StepError::Sys(e)) };
        }
        Ok(())
    }

    /// Gives the ballast up; whether there was one.
    pub(crate) fn drop_ballast(&self) -> bool {
        fs::remove_file(self.state_path.join(BALLAST)).is_ok()
    }
}
