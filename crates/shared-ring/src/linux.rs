//! This machine: system calls, clock and random source of Linux.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, SocketFlags, sockopt};
use rustix::thread::gettid;

use crate::datagram;
use crate::descriptor::{borrow, set_option};
use crate::disk;
use crate::listening::{clamp, socket_for};
use crate::offload::OffloadThreads;
use crate::{
    Blocking, BufferSizes, CallJob, Fd, File, FileJob, FileOutcome, FileRange, Host, ListenOptions,
    ListeningSocket, Metadata, Socket, System, WakeSignal, Waker,
};

/// This machine.
#[derive(Clone, Debug, Default)]
pub struct Linux(());

/// Borrows a socket of this machine.
fn lend(socket: &Socket) -> BorrowedFd<'_> {
    // SAFETY: the owner exists, so the socket is open; for an alias, its `Fd` promises that.
    unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) }
}

/// Takes ownership of a socket of this machine, to be closed on drop.
pub(crate) fn take(socket: Socket) -> OwnedFd {
    // SAFETY: it owned the descriptor, and is consumed.
    unsafe { OwnedFd::from_raw_fd(socket.as_raw_fd()) }
}

/// Sets `TCP_NOTSENT_LOWAT`, which rustix lacks.
fn set_unsent_limit(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    // The kernel reads an unsigned integer.
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes.cast_signed())
}

/// Defers the choice of the port until connect(2), so that each local address can use all ports
/// for each peer (ip(7), `IP_BIND_ADDRESS_NO_PORT`).
fn choose_port_later(fd: &OwnedFd) -> io::Result<()> {
    set_option(fd.as_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Returns the kernel's state of a TCP socket (tcp(7), `TCP_INFO`).
fn tcp_info(fd: BorrowedFd<'_>) -> Option<libc::tcp_info> {
    // SAFETY: a `tcp_info` consists of integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    let into = (&raw mut info).cast();
    // SAFETY: the kernel writes at most `length` bytes, which `info` has.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, into, &raw mut length)
    };
    (result == 0).then_some(info)
}

impl Host for Linux {
    fn listen(
        &mut self,
        at: SocketAddr,
        options: &ListenOptions,
    ) -> io::Result<(Socket, SocketAddr)> {
        let socket = ListeningSocket::bind(at, options)?;
        let address = socket.address();
        Ok((socket.into_descriptor()?.into(), address))
    }

    fn adopt(&mut self, socket: ListeningSocket) -> io::Result<Socket> {
        socket.into_descriptor().map(Socket::from)
    }

    #[inline]
    fn accept(&mut self, listener: &Socket) -> Result<Socket, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        net::accept_with(lend(listener), flags).map(Socket::from)
    }

    fn backlog(&mut self, listener: &Socket, length: u32) -> io::Result<()> {
        Ok(net::listen(lend(listener), clamp(length))?)
    }

    fn backlog_length(&self, listener: &Socket) -> Option<u32> {
        // Of a listening socket, the field has the length of the backlog (tcp_diag.c).
        tcp_info(lend(listener)).map(|info| info.tcpi_sacked)
    }

    fn queue_length(&self, listener: &Socket) -> Option<u32> {
        // This one has the number of connections that wait to be accepted.
        tcp_info(lend(listener)).map(|info| info.tcpi_unacked)
    }

    fn socket(
        &mut self,
        peer: SocketAddr,
        from: Option<IpAddr>,
        buffers: BufferSizes,
    ) -> io::Result<Socket> {
        let fd = socket_for(peer, buffers)?;
        if let Some(address) = from {
            choose_port_later(&fd)?;
            net::bind(&fd, &SocketAddr::new(address, 0))?;
        }
        Ok(fd.into())
    }

    fn shutdown(&mut self, socket: &Socket) {
        let _ = net::shutdown(lend(socket), net::Shutdown::Write);
    }

    fn set_unsent_limit(&mut self, socket: &Socket, bytes: u32) -> io::Result<()> {
        set_unsent_limit(lend(socket), bytes)
    }

    fn reset_on_close(&mut self, socket: &Socket) {
        let _ = sockopt::set_socket_linger(lend(socket), Some(std::time::Duration::ZERO));
    }

    fn close_unused(&mut self, socket: Socket) {
        drop(take(socket));
    }

    fn peer_addr(&self, socket: &Socket) -> Option<SocketAddr> {
        let address = net::getpeername(lend(socket)).ok()??;
        SocketAddr::try_from(address).ok()
    }

    fn unacked_bytes(&self, socket: &Socket) -> u64 {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the request writes one integer, to `bytes` (tcp(7), SIOCOUTQ).
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if result == 0 { bytes.unsigned_abs().into() } else { 0 }
    }

    fn file_metadata(&self, file: &File) -> Result<Metadata, Errno> {
        disk::meta(borrow(&file.fd()))
    }

    fn read_file(
        &self,
        file: &File,
        offset: u64,
        into: &mut [u8],
        disk: Blocking,
    ) -> Result<usize, Errno> {
        let part = FileRange { file: file.fd(), offset, len: into.len() as u32 };
        if disk == Blocking::NoBlock && disk::has_gap(part) == Some(true) {
            // The kernel would begin to read the page, alone.
            return Err(Errno::AGAIN);
        }
        disk::read_into(file.fd(), offset, into, disk)
    }

    fn unread(&self, socket: &Socket) -> u64 {
        rustix::io::ioctl_fionread(lend(socket)).unwrap_or(0)
    }

    fn idle_time(&self, socket: &Socket) -> Option<Duration> {
        // Without TCP_INFO the idle time counts as zero.
        let Some(info) = tcp_info(lend(socket)) else { return Some(Duration::ZERO) };
        let idle_ms = info.tcpi_last_data_recv.min(info.tcpi_last_data_sent);
        (info.tcpi_state != TCP_CLOSE).then(|| Duration::from_millis(idle_ms.into()))
    }

    fn open_directory(&mut self, path: &Path) -> io::Result<File> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        // O_PATH alone needs no permission; this open checks search permission for the directory.
        rustix::fs::openat(&fd, c".", flags, Mode::empty())?;
        Ok(File::from(fd))
    }

    #[inline]
    fn clock(&self) -> Instant {
        Instant::now()
    }

    fn wall_time(&self) -> SystemTime {
        SystemTime::now()
    }

    fn cpu_time(&self) -> Duration {
        let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // libc, as rustix looks for the vDSO, which valgrind hides: that is a memory fault.
        // SAFETY: the kernel writes one timespec, to `used`. This clock exists, so the call can't
        // fail.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut used) };
        Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
    }

    fn random(&mut self) -> u64 {
        let mut bytes = [0; 8];
        // It fails only in early boot or if a signal arrives before the first byte; then use the clock.
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(8) => u64::from_ne_bytes(bytes),
            _ => rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_nsec as u64,
        }
    }
}

impl System for Linux {
    type Offload = OffloadThreads;

    fn waker(&mut self, signal: WakeSignal) -> io::Result<Waker> {
        match signal {
            WakeSignal::Polled => Waker::new(),
            WakeSignal::Read => Waker::for_ring(),
            WakeSignal::Signalled => Waker::with_pipe(),
        }
    }

    fn offload(&self, waker: Waker) -> OffloadThreads {
        OffloadThreads::new(waker)
    }

    #[inline]
    fn recv(&mut self, fd: Fd, into: &mut [u8]) -> Result<usize, Errno> {
        net::recv(borrow(&fd), into, RecvFlags::empty()).map(|(n, _)| n)
    }

    #[inline]
    fn send(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Errno> {
        net::send(borrow(&fd), bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    #[inline]
    fn sendmsg(&mut self, fd: Fd, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        net::sendmsg(borrow(&fd), slices, &mut Default::default(), flags)
    }

    fn receive_from(&mut self, fd: Fd, into: &mut [u8]) -> Result<usize, Errno> {
        datagram::receive(fd, into)
    }

    fn send_to(&mut self, fd: Fd, slices: &[IoSlice<'_>], to: SocketAddr) -> Result<(), Errno> {
        let mut control = Default::default();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        net::sendmsg_addr(borrow(&fd), &to, slices, &mut control, flags).map(drop)
    }

    fn is_writable(&mut self, fd: Fd) -> Result<bool, Errno> {
        let fd = borrow(&fd);
        let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
        poll(&mut polled, Some(&Timespec::default())).map(|n| n > 0)
    }

    fn sendfile(&mut self, fd: Fd, part: FileRange) -> Result<usize, Errno> {
        let mut from = part.offset;
        rustix::fs::sendfile(borrow(&fd), borrow(&part.file), Some(&mut from), part.len as usize)
    }

    fn is_cold(&mut self, part: FileRange) -> bool {
        disk::is_cold(part)
    }

    fn set_read_ahead(&mut self, file: Fd, on: bool) {
        disk::set_read_ahead(file, on);
    }

    fn connect(&mut self, fd: Fd, to: SocketAddr) -> Result<(), Errno> {
        net::connect(borrow(&fd), &to)
    }

    fn connected(&mut self, fd: Fd) -> Result<(), Errno> {
        sockopt::socket_error(borrow(&fd))?
    }

    fn file_work(&mut self, job: &FileJob) -> Result<FileOutcome, Errno> {
        job.run(Blocking::NoBlock).map(FileOutcome::from)
    }

    fn read_cached(&mut self, part: FileRange, into: &mut [u8]) -> Result<usize, Errno> {
        disk::read_into(part.file, part.offset, into, Blocking::NoBlock)
    }

    fn call(&mut self, job: &CallJob) -> Result<usize, Errno> {
        job.run()
    }

    fn enable_sigio(&mut self, fd: Fd) -> Result<(), Errno> {
        let fd = borrow(&fd);
        // Before the owner: an open file that another thread watched (`SignalQueue`) has a real-time
        // signal, which would end this process. That thread expects SIGIO, too.
        set_signal(fd, 0)?;
        signal_to_this_thread(fd)?;
        set_async(fd, true)
    }

    fn disable_sigio(&mut self, fd: Fd) -> Result<(), Errno> {
        let fd = borrow(&fd);
        if !signals_to_this_thread(fd)? {
            return Ok(());
        }
        set_async(fd, false)?;
        if !signals_to_this_thread(fd)? {
            // Another process has enabled them for itself meanwhile.
            set_async(fd, true)?;
        }
        Ok(())
    }

    fn meta(&self, fd: Fd) -> Result<Metadata, Errno> {
        disk::meta(borrow(&fd))
    }

    fn file(&self, opened: Socket) -> File {
        File::from(take(opened))
    }
}

/// `TCP_CLOSE` of the kernel's tcp_states.h.
const TCP_CLOSE: u8 = 7;

/// Makes a descriptor send signals, or no more (`O_ASYNC`).
pub(crate) fn set_async(fd: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
    let on = libc::c_int::from(on);
    // SAFETY: the request reads one integer, from `on` (ioctl(2), FIOASYNC).
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIOASYNC, &raw const on) })
}

/// Sets the signal that a descriptor sends; 0 stands for SIGIO.
pub(crate) fn set_signal(fd: BorrowedFd<'_>, signal: libc::c_int) -> Result<(), Errno> {
    // SAFETY: passes numbers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), F_SETSIG, signal) })
}

/// Directs a descriptor's signals to the calling thread only.
pub(crate) fn signal_to_this_thread(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let owner = OwnerEx { kind: F_OWNER_TID, thread: gettid().as_raw_nonzero().get() };
    // SAFETY: the command reads one `f_owner_ex`, whose layout `OwnerEx` has.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), F_SETOWN_EX, &raw const owner) })
}

/// Returns whether a descriptor's signals are directed to the calling thread.
pub(crate) fn signals_to_this_thread(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut owner = OwnerEx { kind: -1, thread: 0 };
    // SAFETY: the command writes one `f_owner_ex`, whose layout `OwnerEx` has.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), F_GETOWN_EX, &raw mut owner) })?;
    Ok(owner.kind == F_OWNER_TID && owner.thread == gettid().as_raw_nonzero().get())
}

/// Returns the error of fcntl(2), if it failed.
fn check(result: libc::c_int) -> Result<(), Errno> {
    if result >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_GETOWN_EX: libc::c_int = 16;
const F_OWNER_TID: libc::c_int = 0;

/// `struct f_owner_ex` of fcntl(2).
#[repr(C)]
struct OwnerEx {
    kind: libc::c_int,
    thread: libc::pid_t,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn socket_connects_from_the_given_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = listener.local_addr().unwrap();
        let from = IpAddr::from([127, 0, 0, 9]);
        let mut linux = Linux::default();
        let socket = linux.socket(peer, Some(from), BufferSizes::default()).unwrap();
        let own = SocketAddr::try_from(net::getsockname(lend(&socket)).unwrap()).unwrap();
        assert_eq!(own, SocketAddr::new(from, 0), "its port is chosen when it is connected");
        assert_eq!(linux.connect(socket.number(), peer), Err(Errno::INPROGRESS));
        assert_eq!(listener.accept().unwrap().1.ip(), from);
        linux.close_unused(socket);
    }

    #[test]
    fn owner_has_the_layout_of_f_owner_ex() {
        assert_eq!(size_of::<OwnerEx>(), 8);
        assert_eq!(std::mem::offset_of!(OwnerEx, thread), 4);
    }
}
