//! Commands of a wrapper, which forwards those that it does not change.

use std::any::Any;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use shared_ring::buffers::{BufferError, BufferGroup, BufferPool};

use crate::{
    AcceptPolicy, Chunk, Close, Commands, ConnId, FileOp, Lateness, Listener, NoTimer, Stats,
};

/// Defines [`Forward`] and its [`Commands`] from the list of commands.
macro_rules! forward {
    (
        shared { $(fn $get:ident($($key:ident: $key_type:ty),*) -> $got:ty;)* }
        mutable { $(fn $do:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)* }
    ) => {
        /// A wrapper around [`Commands`], for an application inside another: it implements
        /// [`Commands`] by its methods, which forward the commands that it does not override.
        ///
        /// ```
        /// use evring::layers::Forward;
        /// use evring::{Chunk, Commands, ConnId};
        ///
        /// /// Counts the calls of `send`.
        /// struct Counting<'a, C> {
        ///     inner: &'a mut C,
        ///     sends: &'a mut u64,
        /// }
        ///
        /// impl<C: Commands> Forward for Counting<'_, C> {
        ///     type Inner = C;
        ///
        ///     fn inner(&self) -> &C {
        ///         self.inner
        ///     }
        ///
        ///     fn inner_mut(&mut self) -> &mut C {
        ///         self.inner
        ///     }
        ///
        ///     fn send(&mut self, to: ConnId, chunk: Chunk<'_>) -> usize {
        ///         *self.sends += 1;
        ///         self.inner.send(to, chunk)
        ///     }
        /// }
        /// ```
        pub trait Forward {
            /// The commands inside.
            type Inner: Commands + ?Sized;

            /// Returns the commands inside.
            fn inner(&self) -> &Self::Inner;

            /// The same, to be changed.
            fn inner_mut(&mut self) -> &mut Self::Inner;

            $(
                #[doc = concat!("See [`Commands::", stringify!($get), "`].")]
                fn $get(&self, $($key: $key_type),*) -> $got {
                    self.inner().$get($($key),*)
                }
            )*
            $(
                #[doc = concat!("See [`Commands::", stringify!($do), "`].")]
                fn $do(&mut self, $($argument: $type),*) $(-> $result)? {
                    self.inner_mut().$do($($argument),*)
                }
            )*
        }

        impl<W: Forward> Commands for W {
            $(
                fn $get(&self, $($key: $key_type),*) -> $got {
                    Forward::$get(self, $($key),*)
                }
            )*
            $(
                fn $do(&mut self, $($argument: $type),*) $(-> $result)? {
                    Forward::$do(self, $($argument),*)
                }
            )*
        }
    };
}

forward! {
    shared {
        fn now() -> Instant;
        fn wall_time() -> SystemTime;
        fn unsent_bytes(id: ConnId) -> u64;
        fn queued_bytes(id: ConnId) -> u64;
        fn is_receiving(id: ConnId) -> bool;
        fn is_open(id: ConnId) -> bool;
        fn is_closing(id: ConnId) -> bool;
        fn receive_group(id: ConnId) -> BufferGroup;
        fn next_open(slot: u32) -> Option<ConnId>;
        fn peer_addr(id: ConnId) -> Option<SocketAddr>;
        fn session(id: ConnId) -> Option<&dyn Any>;
        fn lateness(id: ConnId) -> Lateness;
        fn deadline(id: ConnId) -> Option<Instant>;
        fn is_overloaded() -> bool;
        fn stats() -> Stats;
        fn is_stopping() -> bool;
    }
    mutable {
        fn random() -> u64;
        fn send(to: ConnId, chunk: Chunk<'_>) -> usize;
        fn reserve(to: ConnId, n: usize) -> &mut [u8];
        fn connect(to: SocketAddr) -> ConnId;
        fn file_op(on: ConnId, tag: u32, op: FileOp);
        fn set_receiving(id: ConnId, on: bool);
        fn hold(id: ConnId, on: bool);
        fn set_deadline(id: ConnId, at: Option<Instant>);
        fn set_timer(timer: u32, at: Option<Instant>) -> Result<(), NoTimer>;
        fn busy_poll(time: Duration);
        fn close(id: ConnId, how: Close);
        fn add_buffers(buffers: BufferPool) -> Result<BufferGroup, BufferError>;
        fn set_receive_group(id: ConnId, group: BufferGroup) -> Result<(), BufferError>;
        fn set_accept_policy(at: Listener, how: AcceptPolicy);
    }
}
