package template

import consultemplate "github.com/hashicorp/consul-template/template"

// Scratch has the methods of consul-template's Scratch that templates call. With the methods of the mutex, which the original has, too, a
// template could wait forever. The zero value is ready to use.
type Scratch struct{ values consultemplate.Scratch }

// Key is consul-template's Scratch.Key, and so are the other methods.
func (s *Scratch) Key(k string) bool { return s.values.Key(k) }

func (s *Scratch) Get(k string) any                            { return s.values.Get(k) }
func (s *Scratch) Set(k string, v any) string                  { return s.values.Set(k, v) }
func (s *Scratch) SetX(k string, v any) string                 { return s.values.SetX(k, v) }
func (s *Scratch) MapSet(k, mk string, v any) (string, error)  { return s.values.MapSet(k, mk, v) }
func (s *Scratch) MapSetX(k, mk string, v any) (string, error) { return s.values.MapSetX(k, mk, v) }
func (s *Scratch) MapValues(k string) ([]any, error)           { return s.values.MapValues(k) }
