// Package drivertest contains task driver plugins that are written for the wire format alone: with
// the generated messages, and without the packages of this module that hosts and authors use. They
// stand for drivers that were built with other SDKs, in different years.
package drivertest
