//! A private network namespace, without packets of other programs.

use std::fs;
use std::io;

use rustix::fd::AsRawFd;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::UnshareFlags;

/// Kernel settings for many connections. The first gives clients more ports. The next two are the
/// maximum listen backlog, which servers without an option for it use, and the maximum number of
/// connections in SYN-RECV. The fourth lets clients that close first reuse their ports. The last bounds receive buffers:
/// those that the kernel adjusts grow to megabytes, and where the client's core is the limit, the queues leave its
/// cache and stay long, so that a server has one of two rates, by chance.
const SETTINGS: [(&str, &str); 5] = [
    ("net/ipv4/ip_local_port_range", "1024 65535"),
    ("net/core/somaxconn", "4096"),
    ("net/ipv4/tcp_max_syn_backlog", "65535"),
    ("net/ipv4/tcp_tw_reuse", "1"),
    ("net/ipv4/tcp_rmem", "4096 131072 262144"),
];

/// Moves this process, which has one thread, and its future children into a new network namespace
/// with only a loopback interface.
///
/// # Errors
/// If this is not permitted, or the namespace cannot be set up.
pub(crate) fn enter_own_network() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    // SAFETY: no memory or descriptors are concerned, and there is no other thread.
    let unshare = |flags| unsafe { rustix::thread::unshare_unsafe(flags) };
    if uid.is_root() {
        unshare(UnshareFlags::NEWNET)?;
    } else {
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET)?;
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{0} {0} 1", uid.as_raw()))?;
        fs::write("/proc/self/gid_map", format!("{0} {0} 1", gid.as_raw()))?;
    }
    raise_loopback()?;
    for (name, value) in SETTINGS {
        fs::write(format!("/proc/sys/{name}"), value)?;
    }
    Ok(())
}

/// Sets the interface `lo` up (netdevice(7)).
fn raise_loopback() -> io::Result<()> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: a plain C structure for which all zero bytes are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the call reads one `ifreq`, which is live.
    let result = unsafe { libc::ioctl(any.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
