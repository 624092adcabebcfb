// Package thirdparty tests the way of a plugin's author outside of the repository: `nomad-lite plugin new` of a released
// version, and builds against the module as a module proxy serves it.
package thirdparty
