package basewire

import "context"

// Forward calls send with each value of a channel until ctx ends or send returns an error, which Forward returns. It returns nil
// if the channel was closed before ctx has ended.
func Forward[T any](ctx context.Context, values <-chan T, send func(T) error) error {
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
