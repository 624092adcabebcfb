// Package pluginreport describes the plugins of an agent in this process, in the form of package pluginstatus.
package pluginreport
