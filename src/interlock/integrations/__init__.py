"""Interlock inside other libraries' loops, one module each: `lightning`, `accelerate`.

This package imports none of them; name the module that you use.
"""
