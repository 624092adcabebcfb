// Package specwire converts a hclspec.Spec to and from its protobuf message. The clients and servers below plugins call it, and
// the packages that describe or decode config blocks link no protobuf.
//
// The package is not part of the contract: other modules cannot rely on it.
package specwire
