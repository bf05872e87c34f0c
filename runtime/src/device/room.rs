//! How much memory the host has free, asked before much of it is allocated.

use std::path::Path;

use super::DeviceError;

/// Allocations below this are not asked about: the question takes longer than they do.
pub(crate) const SMALL: u128 = 64 << 20;

/// Free memory, and all of it, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    pub free: u128,
    pub total: u128,
}

impl Room {
    fn or_less(self, other: Self) -> Self {
        Self { free: self.free.min(other.free), total: self.total.min(other.total) }
    }

    /// Refuses a request for which there is no room. `whose` is the device that asks.
    pub fn hold(self, whose: &str, requested: u128) -> Result<(), DeviceError> {
        if requested <= self.free {
            return Ok(());
        }
        let bytes = |n: u128| usize::try_from(n).unwrap_or(usize::MAX);
        let device = whose.to_owned();
        Err(DeviceError::OutOfMemory { device, requested: bytes(requested), free: bytes(self.free), total: bytes(self.total) })
    }
}

/// Refuses an allocation on the host for which there is no room. `whose` is the device that asks.
pub(crate) fn host_holds(whose: &str, bytes: usize) -> Result<(), DeviceError> {
    match bytes as u128 {
        small if small < SMALL => Ok(()),
        large => host_room().map_or(Ok(()), |room| room.hold(whose, large)),
    }
}

/// The memory of the machine that this process may use, where the system tells.
pub(crate) fn host_room() -> Option<Room> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = groups(Path::new("/sys/fs/cgroup"), &own);
    Some(groups.into_iter().fold(of_meminfo(&meminfo)?, Room::or_less))
}

fn of_meminfo(text: &str) -> Option<Room> {
    let value = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse::<u128>().ok().map(|kib| kib << 10)
    };
    Some(Room { free: value("MemAvailable")?, total: value("MemTotal")? })
}

/// The limits of the control group of this process and of those around it (cgroup v2), as
/// `/proc/self/cgroup` names it. Where the group is not there, as in a container that sees its own
/// as the root, the root is taken.
fn groups(root: &Path, own: &str) -> Vec<Room> {
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::")) else { return Vec::new() };
    let named = root.join(path.trim_start_matches('/'));
    let from = if named.is_dir() { named } else { root.to_owned() };
    from.ancestors().take_while(|at| at.starts_with(root)).filter_map(of_group).collect()
}

fn of_group(at: &Path) -> Option<Room> {
    let number = |name: &str| std::fs::read_to_string(at.join(name)).ok()?.trim().parse::<u128>().ok();
    let (most, used) = (number("memory.max")?, number("memory.current")?);
    // The system gives up cached files before it refuses memory.
    let stat = std::fs::read_to_string(at.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|l| l.strip_prefix("inactive_file ")).and_then(|n| n.trim().parse().ok()).unwrap_or(0);
    Some(Room { free: most.saturating_sub(used.saturating_sub(cached)), total: most })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_host_has_is_refused() {
        assert!(host_holds("cpu", usize::MAX).is_err() && host_holds("cpu", 1 << 20).is_ok());
    }

    #[test]
    fn limits_of_control_groups_count() {
        let text = "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    9000 kB\n";
        assert_eq!(of_meminfo(text), Some(Room { free: 9000 << 10, total: 16000 << 10 }));
        assert_eq!(of_meminfo("MemTotal: 1 kB\n"), None);
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("creates");
            std::fs::write(path, text).expect("writes");
        };
        write("a/memory.max", "1000\n");
        write("a/memory.current", "900\n");
        write("a/memory.stat", "anon 1\ninactive_file 300\n");
        write("a/b/memory.max", "max\n");
        write("a/b/memory.current", "100\n");
        assert_eq!(groups(dir.path(), "0::/a/b\n"), [Room { free: 400, total: 1000 }]);
        assert_eq!(groups(dir.path(), "0::/elsewhere\n"), []);
        assert_eq!(groups(dir.path(), "5:memory:/a\n"), []);
    }
}
