//! Several calls of one task.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Waits for all futures; their calls are posted together. Returns their outputs in order.
pub(crate) async fn all<F: Future + Unpin>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(Some).collect();
    let mut outputs: Vec<_> = futures.iter().map(|_| None).collect();
    poll_fn(move |context| {
        let mut pending = false;
        for (place, output) in futures.iter_mut().zip(&mut outputs) {
            let Some(future) = place else { continue };
            match Pin::new(future).poll(context) {
                Poll::Ready(ready) => {
                    *output = Some(ready);
                    *place = None;
                }
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(outputs.drain(..).flatten().collect()) }
    })
    .await
}
