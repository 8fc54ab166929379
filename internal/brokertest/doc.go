// Package brokertest runs message brokers for tests: private instances on free
// loopback ports, with a data folder of their own, gone at the test's end.
//
// Their programs come from the folder that MQNOTIFY_TEST_BROKERS names, or the one that
// scripts/brokers has filled in the user's cache. Each broker asks for a user and a
// password, so that tests see credentials where they are refused and where they leak.
package brokertest
