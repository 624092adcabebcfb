// Package template has consul-template's type Scratch without the methods of its mutex. The package has the name of
// consul-template's, because templates print the name of the type and errors contain it.
package template
