package basewire

import "context"

// ForwardChannel calls send with each value of a channel. It returns the first error of send, the error of ctx when
// ctx ends, and nil when the channel is closed before ctx has ended.
func ForwardChannel[T any](ctx context.Context, values <-chan T, send func(T) error) error {
	for {
		select {
		case v, ok := <-values:
			if !ok {
				return ctx.Err()
			}
			if err := send(v); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
