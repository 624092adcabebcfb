package execsession

import "io"

// escapeReader looks in the input for an escape at the start of a line: the character and a
// dot leave the session, the character twice sends one of it.
type escapeReader struct {
	r       io.Reader
	char    byte
	leave   func()
	atStart bool   // the next byte starts a line
	escaped bool   // the last byte was the escape character
	ready   []byte // bytes read and not yet returned
}

func (e *escapeReader) Read(p []byte) (int, error) {
	for len(e.ready) == 0 {
		typed := make([]byte, len(p))
		n, err := e.r.Read(typed)
		for _, c := range typed[:n] {
			if !e.add(c) {
				e.leave()
				return 0, io.EOF
			}
		}
		if err != nil && len(e.ready) == 0 {
			return 0, err
		}
	}
	n := copy(p, e.ready)
	e.ready = e.ready[n:]
	return n, nil
}

// add processes c, and reports whether the session continues.
func (e *escapeReader) add(c byte) bool {
	switch {
	case e.escaped && c == '.':
		return false
	case e.escaped:
		e.escaped = false
		e.ready = append(e.ready, e.char)
		if c == e.char {
			e.atStart = false
			return true
		}
	case e.atStart && c == e.char:
		e.escaped = true
		return true
	}
	e.atStart = c == '\r' || c == '\n'
	e.ready = append(e.ready, c)
	return true
}
