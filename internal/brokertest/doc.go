// Package brokertest runs message brokers for tests: private instances on free
// loopback ports, with a data folder of their own, which end with the test.
//
// Their programs come from the folder that MQNOTIFY_TEST_BROKERS names, or from the one that
// scripts/brokers has filled in the user's cache. Every broker requires a user and a
// password, so that tests notice refused and leaked credentials.
package brokertest
