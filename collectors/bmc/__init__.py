"""Chassis: IPMI and Redfish, from the head and in band."""
